//! What is worth an event: conditions that changed, and the few things that conditions cannot say.
//!
//! Lives here: the pure difference of two statuses, in the words of events. May use: Kubernetes' condition type. Must
//! never come in: an event for a figure, or for something that goes on.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// One event to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Whether somebody should look.
    pub warning: bool,
    /// PascalCase, of a closed set.
    pub reason: String,
    /// What is so, in a sentence.
    pub note: String,
}

impl News {
    /// Something that somebody should look at.
    pub fn warning(reason: &str, note: impl Into<String>) -> Self {
        Self {
            warning: true,
            reason: reason.into(),
            note: cut(note.into()),
        }
    }

    /// Something that is as it should be.
    pub fn normal(reason: &str, note: impl Into<String>) -> Self {
        Self {
            warning: false,
            ..Self::warning(reason, note)
        }
    }
}

/// The longest note that the API server takes, in bytes.
const LONGEST: usize = 1000;

fn cut(mut note: String) -> String {
    while note.len() > LONGEST {
        note.pop();
    }
    note
}

/// What changed between two sets of conditions. Nothing good is said of a first look.
pub fn between(before: &[Condition], after: &[Condition]) -> Vec<News> {
    let status = |all: &[Condition], kind: &str| {
        let found = all.iter().find(|c| c.type_ == kind);
        found.map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
    };
    let mut news = Vec::new();
    for (kind, well) in [("Ready", "Ready"), ("Fresh", "Fresh")] {
        let old = status(before, kind).map(|(status, ..)| status);
        let Some((new, reason, message)) = status(after, kind) else {
            continue;
        };
        if old.as_deref() == Some(new.as_str()) {
            continue;
        }
        match new.as_str() {
            // Why a table is not ready says why it is not fresh, too.
            "False" if kind == "Fresh" => {
                let note = format!("Pending rows are older than the target. {message}");
                news.push(News::warning("PastDeadline", note));
            }
            "False" => news.push(News::warning(&reason, message)),
            "True" if old.as_deref() == Some("False") => {
                let note = match kind {
                    "Ready" => "Freshet takes care of this table again.",
                    _ => "Nothing pending is older than the target any more.",
                };
                news.push(News::normal(well, note));
            }
            _ => {}
        }
    }
    news
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn set(ready: &str, fresh: &str) -> Vec<Condition> {
        let one = |kind: &str, status: &str| Condition {
            type_: kind.into(),
            status: status.into(),
            reason: "TableNotFound".into(),
            message: "There is no table.".into(),
            observed_generation: Some(1),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        vec![one("Ready", ready), one("Fresh", fresh)]
    }

    fn reasons(before: &[Condition], after: &[Condition]) -> Vec<(bool, String)> {
        let news = between(before, after);
        news.into_iter().map(|n| (n.warning, n.reason)).collect()
    }

    #[test]
    fn only_transitions_are_news() {
        let (good, bad) = (set("True", "True"), set("False", "Unknown"));
        assert_eq!(reasons(&[], &good), []);
        assert_eq!(reasons(&good, &good), []);
        assert_eq!(reasons(&good, &bad), [(true, "TableNotFound".to_owned())]);
        assert_eq!(reasons(&bad, &bad), []);
        assert_eq!(reasons(&bad, &good), [(false, "Ready".to_owned())]);
    }

    #[test]
    fn a_deadline_that_passed_is_told_and_so_is_its_end() {
        let (good, late) = (set("True", "True"), set("True", "False"));
        assert_eq!(reasons(&good, &late), [(true, "PastDeadline".to_owned())]);
        assert_eq!(reasons(&late, &good), [(false, "Fresh".to_owned())]);
    }

    #[test]
    fn a_note_fits_into_an_event() {
        assert!(News::normal("x", "ö".repeat(2000)).note.len() <= LONGEST);
    }
}
