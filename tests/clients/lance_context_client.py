"""Runs in the Python that has lance-context: does what a plan says, and prints what the client answered.

    lance_context_client.py KIND URI < plan.json       KIND: rollout | generic

A plan is {"schema": … (generic only), "steps": [[step, argument…], …]}; each step prints one JSON line. Binary values
travel as {"base64": …}. A URI http://HOST/NAME is connected to; ["refused", step, …] prints the error. Knows nothing of what an answer should be.
"""

import base64
import json
import sys

import lance_context


def unwrap(value):
    return base64.b64decode(value["base64"]) if isinstance(value, dict) and set(value) == {"base64"} else value


def wrap(value):
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def call(store, step: str, *args):
    """A last argument that is an object holds arguments by name."""
    given = args[-1] if args and isinstance(args[-1], dict) else {}
    return getattr(store, step)(*(args[:-1] if given else args), **given)


def refused(call) -> str:
    try:
        return f"not refused: {call()!r}"
    except RuntimeError as e:
        return str(e)


def main(kind: str, uri: str):
    plan = json.load(sys.stdin)
    if uri.startswith("http://"):
        url, name = uri.rsplit("/", 1)
        kinds = {"rollout": lance_context.RolloutStore, "generic": lance_context.GenericStore}
        store = kinds[kind].connect(url, name)
    elif kind == "rollout":
        store = lance_context.RolloutStore.open(uri)
    elif "schema" in plan:
        store = lance_context.GenericStore.open(uri, plan["schema"])
    else:
        store = lance_context.GenericStore.open_existing(uri)
    for step, *args in plan["steps"]:
        if step == "add":
            answer = store.add([{k: unwrap(v) for k, v in row.items()} for row in args[0]])
        elif step == "list":
            answer = list(store.list(**(args[0] if args else {})))
        elif step == "refused":
            answer = refused(lambda: call(store, *args))
        else:
            answer = call(store, step, *args)
        if isinstance(answer, list):
            answer = [{k: wrap(v) for k, v in row.items()} for row in answer]
        elif isinstance(answer, dict):
            answer = {k: wrap(v) for k, v in answer.items()}
        print(json.dumps(wrap(answer)), flush=True)


main(*sys.argv[1:])
