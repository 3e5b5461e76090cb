"""Records episodes of CartPole as rollouts, in a lance-context RolloutStore that Freshet then keeps fresh.

    pip install lance-context==0.6.7 gymnasium==1.4.0
    python gymnasium_rollouts.py runs/cartpole.rollout.lance --episodes 20
    freshet local --table cartpole=runs/cartpole.rollout.lance      # in another terminal
    curl 'http://127.0.0.1:8090/api/v1/experiments/cartpole/records?source=all&limit=3'

An episode is one rollout: a record per step with what the policy saw and did, and a last one with its grade. The
policy is a fixed rule that gets better from episode to episode, and everything follows from --seed, so that a run can
be told again: --print writes the records to the terminal and nothing to a table. Each episode is flushed, which is
what makes it visible: one generation an episode.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random

START = dt.datetime(2026, 1, 1)


def policy(seen, skill: float, dice: random.Random) -> int:
    """Push the cart to where the pole falls; with less skill, more often anywhere."""
    if dice.random() > skill:
        return dice.randrange(2)
    _, _, angle, speed = seen
    return int(angle + 0.5 * speed > 0)


def episode(env, number: int, seed: int) -> list[dict]:
    """The records of one episode."""
    dice, skill = random.Random(f"{seed}/{number}"), min(1.0, number / 20)
    seen, _ = env.reset(seed=seed * 10_000 + number)
    rollout, records, total, over = f"cartpole-{seed}-{number:04}", [], 0.0, False

    def record(**fields):
        step = len(records)
        records.append(
            {
                "id": f"{rollout}-{step:03}",
                "rollout_id": rollout,
                "problem_id": "CartPole-v1",
                "dataset": "gymnasium",
                "sequence_order": step,
                "created_at": (START + dt.timedelta(seconds=number, milliseconds=step)).isoformat() + "Z",
                "content_type": "application/json",
                "policy_version": f"skill-{skill:.2f}",
                "include_in_training": True,
                **fields,
            }
        )

    while not over:
        action = policy(seen, skill, dice)
        content = json.dumps({"seen": [round(float(x), 6) for x in seen], "action": action})
        seen, reward, ended, cut, _ = env.step(action)
        total, over = total + float(reward), ended or cut
        record(role="assistant", content=content, reward=float(reward))
    record(role="grade", content=json.dumps({"steps": len(records)}), score=total, raw_reward=total, grader_id="return")
    return records


def main():
    import gymnasium

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="the store, made when it is not there")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first episode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--print", action="store_true", help="write the records to the terminal and nothing to a table")
    a = parser.parse_args()
    env = gymnasium.make("CartPole-v1")
    if not a.print:
        import lance_context

        store = lance_context.RolloutStore.open(a.table)
    for number in range(a.first, a.first + a.episodes):
        records = episode(env, number, a.seed)
        if a.print:
            for r in records:
                print(json.dumps(r))
        else:
            store.add(records)
            store.flush()
            print(f"episode {number}: {len(records) - 1} steps")


if __name__ == "__main__":
    main()
