//! The verdict on one Experiment: whether its table may be worked on, and with what.
//!
//! Lives here: the desk's part that asks grants, endpoints, Secrets and the other Experiments, in this order, so that
//! nothing is read for a table that may not be touched. May use: `api`, this room's pure parts. Must never come in: an
//! await, or a value of a Secret in a sentence.

use std::collections::BTreeMap;

use super::{Desk, Endpoint};
use crate::api::{TableIdentity, TableSpec, storage};
use crate::controller::access::Identity;
use crate::controller::conditions::{Cause, Own};
use crate::controller::endpoints::Leads;
use crate::controller::row::{Row, Verdict, invalid};
use crate::controller::secrets::{Found, LABEL, Mono};
use crate::controller::specs;
use crate::plan::{Reason, TableId};

impl Desk {
    /// Judges what has to be judged again, and whoever depends on it.
    pub(super) fn judge_dirty(&mut self, now: Mono) {
        if self.dirty.is_empty() {
            return;
        }
        // Whether a table is somebody's depends on the verdicts on all who claim it: two rounds.
        let dirty = std::mem::take(&mut self.dirty);
        let mut rivals = Vec::new();
        for id in &dirty {
            let verdict = self.judge(id, now);
            if self.settle(id, verdict, now) {
                rivals.extend(self.rivals(id));
            }
        }
        for id in rivals {
            let verdict = self.judge(&id, now);
            self.settle(&id, verdict, now);
        }
        let rows = &self.rows;
        let secrets: std::collections::BTreeSet<_> =
            rows.values().filter_map(Row::secret).collect();
        self.secrets.keep(|named| secrets.contains(named));
        let named: std::collections::BTreeSet<String> = rows
            .values()
            .filter_map(|r| Some(endpoints(&r.spec.as_ref()?.experiment.spec.table)))
            .flatten()
            .collect();
        self.endpoints.retain(|name, _| named.contains(name));
    }

    fn settle(&mut self, id: &TableId, verdict: Option<Verdict>, now: Mono) -> bool {
        let (Some(row), Some(verdict)) = (self.rows.get_mut(id), verdict) else {
            return false;
        };
        let news = row.verdict != verdict;
        if news && matches!(verdict, Verdict::Allowed(_)) {
            // The engine needs a moment to look at what is new.
            row.since = now;
        }
        row.verdict = verdict;
        self.moved |= news;
        news
    }

    fn judge(&mut self, id: &TableId, now: Mono) -> Option<Verdict> {
        let row = self.rows.get(id)?;
        let verdict = match self.alone(row).cloned() {
            Err(verdict) => verdict,
            Ok(identity) => self.with_what(id, &identity, now)?,
        };
        let Verdict::Allowed(_) = verdict else {
            return Some(verdict);
        };
        Some(self.elder(id).unwrap_or(verdict))
    }

    /// What the object alone decides.
    fn alone<'a>(&self, row: &'a Row) -> Result<&'a TableIdentity, Verdict> {
        let Some(spec) = &row.spec else {
            return Err(invalid(
                "The object cannot be read as an Experiment. Compare it with `kubectl explain experiment.spec`, and mend or delete it.",
            ));
        };
        let sentence = |e: &String| {
            let mut said = format!("spec.{e}");
            if !said.ends_with('.') {
                said.push('.');
            }
            invalid(said)
        };
        spec.identity.as_ref().map_err(sentence)
    }

    /// What grants, endpoints and Secrets decide.
    fn with_what(&mut self, id: &TableId, identity: &TableIdentity, now: Mono) -> Option<Verdict> {
        let row = self.rows.get(id)?;
        let spec = row.spec.as_ref()?;
        let table = &spec.experiment.spec.table;
        let access = &self.settings.access;
        let refused = |reason, said: String| Some(Verdict::Refused(Cause::Plan(reason), said));
        let opened_by = match access.judge(row.namespace(), table, identity) {
            Ok(opened_by) => opened_by,
            Err(denied) => return refused(Reason::NotAllowed, denied.to_string()),
        };
        let named = identity
            .endpoint()
            .is_some_and(|e| access.names_endpoint(e));
        for endpoint in endpoints(table).into_iter().filter(|_| !named) {
            let fresh = || Endpoint {
                next: now,
                ..Endpoint::default()
            };
            let known = self.endpoints.entry(endpoint).or_insert_with(fresh);
            match known.leads {
                None => return Some(Verdict::Waits("Its endpoint is being looked up.")),
                Some(Leads::Out) => {}
                Some(Leads::Nowhere) => {
                    return refused(
                        Reason::StoreUnreachable,
                        "The name of the endpoint does not resolve. It is tried again by itself; check table.storage.endpoint if this lasts.".into(),
                    );
                }
                Some(Leads::Inside(what)) => {
                    return refused(
                        Reason::NotAllowed,
                        format!(
                            "table.storage.endpoint leads to {what}. Name another, or ask whoever runs the operator to list it in storage.allowedEndpoints."
                        ),
                    );
                }
            }
        }
        let credentials = match (opened_by, row.secret()) {
            (Identity::Secret, Some(secret)) => match self.secrets.get(&secret, now) {
                None => return Some(Verdict::Waits("Its Secret is being read.")),
                Some(found) => match credentials(table, &secret.1, found) {
                    Ok(credentials) => credentials,
                    Err(said) => return refused(Reason::CredentialsMissing, said),
                },
            },
            _ => BTreeMap::new(),
        };
        let mut table = specs::table(id, &spec.experiment, &spec.effective, credentials);
        table.grace_before = row.grace_before;
        Some(Verdict::Allowed(Box::new(table)))
    }

    /// The verdict where an older Experiment has this table, of those that are allowed and able to open it.
    fn elder(&self, id: &TableId) -> Option<Verdict> {
        let row = self.rows.get(id)?;
        let mine = row.seniority();
        let older = self.rivals(id).into_iter().filter_map(|other| {
            let other = self.rows.get(&other)?;
            (other.id != row.id && other.seniority() < mine && self.can_open(other))
                .then_some(other)
        });
        let owner = older.min_by(|a, b| a.seniority().cmp(&b.seniority()))?;
        // Who else has which table is nobody's business in another namespace.
        let who = match owner.namespace() == row.namespace() {
            true => format!("The older Experiment {}", owner.id.name()),
            false => "An older Experiment of another namespace".to_owned(),
        };
        let said = format!(
            "{who} has this table. Delete one of the two; this one is taken up as soon as it is alone."
        );
        Some(Verdict::Refused(Cause::Own(Own::AlreadyClaimed), said))
    }

    fn can_open(&self, row: &Row) -> bool {
        let rejected = self.statuses.get(&row.id).and_then(|s| s.why.as_ref());
        let rejected = rejected.is_some_and(|w| {
            matches!(
                w.reason,
                Reason::CredentialsRejected | Reason::CredentialsMissing
            )
        });
        match &row.verdict {
            Verdict::Allowed(_) => !rejected,
            // It may yet be the owner; nobody else begins before that is known.
            Verdict::Waits(_) => true,
            Verdict::Refused(cause, _) => *cause == Cause::Own(Own::AlreadyClaimed) && !rejected,
        }
    }
}

/// Every base URL that requests for a table would go to, beside the cloud's own.
fn endpoints(table: &TableSpec) -> Vec<String> {
    let mut all: Vec<String> = storage::options(table)
        .into_iter()
        .filter(|(key, _)| key.contains("endpoint") || key.contains("base_url"))
        .map(|(_, value)| value)
        .collect();
    all.extend(table.storage.as_ref().and_then(|s| s.endpoint.clone()));
    all.sort();
    all.dedup();
    all
}

fn credentials(
    table: &TableSpec,
    name: &str,
    found: Found,
) -> Result<BTreeMap<String, String>, String> {
    match found {
        Found::Missing => Err(format!(
            "The Secret {name} of table.secretRef does not exist in this namespace, or does not carry the label {LABEL}: \"true\". Create or label it."
        )),
        Found::Forbidden => Err(format!(
            "The operator may not read the Secret {name} of table.secretRef. Grant its service account get on Secrets in this namespace."
        )),
        Found::Keys(keys) => storage::credentials_for(table, keys)
            .map_err(|e| format!("The Secret {name} of table.secretRef cannot be used: {e}.")),
    }
}
