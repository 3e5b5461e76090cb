//! The verdict on one Experiment: whether its table may be worked on, and with what.
//!
//! Lives here: the desk's part that asks the object, the permit and the other Experiments, in this order, so that nothing is
//! read for a table that may not be touched. May use: `api`, this room's pure parts. Must never come in: an
//! await, or a value of a Secret in a sentence.

use super::{Desk, Endpoint};
use crate::api::TableIdentity;
use crate::cluster::permit::{Asked, Need, Permit, Refusal, endpoints};
use crate::cluster::secrets::{Mono, Named};
use crate::controller::conditions::{Cause, Own};
use crate::controller::row::{Row, Verdict, invalid};
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
        let asked = Asked {
            namespace: row.namespace(),
            table: &spec.experiment.spec.table,
            identity,
            field: "table.secretRef",
        };
        let known = &mut self.endpoints;
        let leads = |endpoint: &str| {
            let fresh = || Endpoint {
                next: now,
                ..Endpoint::default()
            };
            known.entry(endpoint.to_owned()).or_insert_with(fresh).leads
        };
        let secrets = &mut self.secrets;
        let found = |named: &Named| secrets.get(named, now);
        Some(match asked.judge(&self.settings.access, leads, found) {
            Permit::Needs(Need::Endpoint(_)) => Verdict::Waits("Its endpoint is being looked up."),
            Permit::Needs(Need::Secret(_)) => Verdict::Waits("Its Secret is being read."),
            Permit::Refused(refusal, said) => Verdict::Refused(Cause::Plan(reason(refusal)), said),
            Permit::Opens(credentials) => {
                let mut table = specs::table(id, &spec.experiment, &spec.effective, credentials);
                table.grace_before = row.grace_before;
                Verdict::Allowed(Box::new(table))
            }
        })
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

fn reason(refusal: Refusal) -> Reason {
    match refusal {
        Refusal::NotAllowed => Reason::NotAllowed,
        Refusal::StoreUnreachable => Reason::StoreUnreachable,
        Refusal::CredentialsMissing => Reason::CredentialsMissing,
    }
}
