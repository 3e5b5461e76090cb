//! Experiments that cannot be, made at random from one seed: what is wrong with each, and what has to be said of it.
//!
//! Lives here: `Maker`. May use: rand. Never: a cluster, or a verdict.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use crate::running::experiment;

/// A part of every credential that was put where none belongs.
pub const SLIP: &str = "SlippedKey";

/// Leaves of the spec, and what they hold.
const LEAVES: [(&str, Kind); 24] = [
    ("table.uri", Kind::Text),
    ("table.secretRef.name", Kind::Text),
    ("table.readSecretRef.name", Kind::Text),
    ("table.storage.endpoint", Kind::Text),
    ("table.storage.region", Kind::Text),
    ("table.storage.account", Kind::Text),
    ("table.storage.allowHTTP", Kind::Bool),
    ("table.storage.virtualHostedStyle", Kind::Bool),
    ("freshness.target", Kind::Duration),
    ("freshness.mergeAt.generations", Kind::Number),
    ("freshness.mergeAt.bytes", Kind::Bytes),
    ("merge.maxGenerationsPerMerge", Kind::Number),
    ("merge.maxBytesPerMerge", Kind::Bytes),
    ("compaction.enabled", Kind::Bool),
    ("compaction.minFragments", Kind::Number),
    ("compaction.targetRowsPerFragment", Kind::Number),
    ("indexes.optimize", Kind::Bool),
    ("retention.drainDelay", Kind::Duration),
    ("retention.mergedGenerationGracePeriod", Kind::Duration),
    ("retention.versions.olderThan", Kind::Duration),
    ("retention.versions.keepAtLeast", Kind::Number),
    ("suspend", Kind::Bool),
    ("deletionPolicy", Kind::Text),
    ("deletion.timeout", Kind::Duration),
];

const OBJECTS: [&str; 9] = [
    "table",
    "table.storage",
    "table.secretRef",
    "freshness",
    "freshness.mergeAt",
    "merge",
    "compaction",
    "retention",
    "retention.versions",
];

/// What a leaf holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Bool,
    Number,
    Bytes,
    Duration,
}

/// Who has to refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The API server, with a message.
    Server,
    /// The operator, in the condition Ready.
    Condition,
}

/// One of them.
#[derive(Debug)]
pub struct Bad {
    pub document: Value,
    pub by: By,
    /// What the refusal names.
    pub names: String,
}

/// Makes one after the other.
pub struct Maker {
    random: StdRng,
    namespace: &'static str,
    endpoint: String,
    made: usize,
}

impl Maker {
    /// `endpoint` is that of a store that answers, and holds the tables plums, pears and kelp.
    pub fn new(seed: u64, namespace: &'static str, endpoint: String) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            namespace,
            endpoint,
            made: 0,
        }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        *of.choose(&mut self.random).unwrap()
    }

    /// An Experiment that could be, some of its tunables named.
    fn good(&mut self) -> Value {
        let mut spec = json!({ "table": {
            "uri": format!("s3://maze-runs/orchard/{}", self.made),
            "secretRef": { "name": "maze-keys" },
            "storage": { "endpoint": self.endpoint, "region": "us-east-1", "allowHTTP": true },
        } });
        for (path, value) in [
            ("freshness.target", json!("90s")),
            ("freshness.mergeAt.generations", json!(7)),
            ("merge.maxBytesPerMerge", json!("8Mi")),
            ("compaction.enabled", json!(false)),
            ("retention.versions.keepAtLeast", json!(3)),
            ("deletion.timeout", json!("1m")),
            ("suspend", json!(false)),
        ] {
            if self.random.random() {
                set(&mut spec, path, value);
            }
        }
        experiment(self.namespace, &format!("bad-{}", self.made), &spec)
    }

    pub fn next(&mut self) -> Bad {
        let mut document = self.good();
        self.made += 1;
        let make = [
            Self::wrong_type,
            Self::unknown_field,
            Self::out_of_range,
            Self::bad_duration,
            Self::bad_bytes,
            Self::credentials_in_the_uri,
            Self::odd_uri,
            Self::bad_metadata,
            Self::name_of_many_tongues,
            Self::forbidden_endpoint,
            Self::no_leave,
        ];
        let make = self.pick(&make);
        let (by, names) = make(self, &mut document);
        Bad {
            document,
            by,
            names,
        }
    }

    fn wrong_type(&mut self, document: &mut Value) -> (By, String) {
        let (path, kind) = self.pick(&LEAVES);
        let wrong = match self.random.random_range(0..5) {
            0 if kind != Kind::Number => json!(self.random.random::<i32>()),
            1 if kind != Kind::Bool => json!(true),
            2 if matches!(kind, Kind::Bool | Kind::Number) => json!("1"),
            3 => json!(["60s"]),
            _ => json!({ "is": { "deep": [1, 2] } }),
        };
        set(&mut document["spec"], path, wrong);
        (By::Server, format!("spec.{path}"))
    }

    fn unknown_field(&mut self, document: &mut Value) -> (By, String) {
        let at = self.pick(&OBJECTS);
        let name = self.pick(&[
            "tarket",
            "URI",
            "Secretref",
            "ターゲット",
            "x-y",
            "proxy_url",
        ]);
        let value = self.pick(&["60s", "", "http://169.254.169.254"]);
        if at == "table.secretRef" {
            set(
                &mut document["spec"],
                "table.secretRef.name",
                json!("maze-keys"),
            );
        }
        let path = format!("{at}.{name}");
        set(&mut document["spec"], &path, json!(value));
        (By::Server, format!("unknown field \"spec.{path}\""))
    }

    fn out_of_range(&mut self, document: &mut Value) -> (By, String) {
        let of = |kind| LEAVES.into_iter().filter(move |l| l.1 == kind);
        let numbers: Vec<_> = of(Kind::Number).collect();
        let (path, _) = self.pick(&numbers);
        let wrong = match self.random.random_range(0..5) {
            0 => json!(0),
            1 => json!(-self.random.random_range(1..i64::MAX)),
            2 => json!(self.random.random_range(1_000_000_001..i64::MAX)),
            3 => json!(1.5),
            _ => json!(1e300),
        };
        set(&mut document["spec"], path, wrong);
        // The least number of fragments is 2.
        (By::Server, format!("spec.{path}"))
    }

    fn bad_duration(&mut self, document: &mut Value) -> (By, String) {
        let durations: Vec<_> = LEAVES
            .into_iter()
            .filter(|l| l.1 == Kind::Duration)
            .collect();
        let (path, _) = self.pick(&durations);
        let wrong = [
            "-5s",
            "-1h30m",
            "5 s",
            "1d",
            "５s",
            "1e9s",
            "s",
            "9999999999h",
            "+1s",
            "1s1h",
        ];
        let wrong = self.pick(&wrong);
        set(&mut document["spec"], path, json!(wrong));
        (By::Server, format!("spec.{path}"))
    }

    fn bad_bytes(&mut self, document: &mut Value) -> (By, String) {
        let bytes: Vec<_> = LEAVES.into_iter().filter(|l| l.1 == Kind::Bytes).collect();
        let (path, _) = self.pick(&bytes);
        let wrong = self.pick(&[
            "-1Gi",
            "0",
            "1Zi",
            "1.5Gi",
            "١Gi",
            "1 Gi",
            "",
            "99999999999999999999",
        ]);
        set(&mut document["spec"], path, json!(wrong));
        (By::Server, format!("spec.{path}"))
    }

    fn credentials_in_the_uri(&mut self, document: &mut Value) -> (By, String) {
        let uri = match self.random.random_range(0..4) {
            0 => format!("s3://AKIA:{SLIP}@maze-runs/p"),
            1 => format!("gs://{SLIP}@maze-runs/p"),
            2 => format!("s3://maze-runs/p?X-Amz-Signature={SLIP}"),
            _ => format!("abfss://cellar:{SLIP}@acct.dfs.core.windows.net/p"),
        };
        document["spec"]["table"]["uri"] = json!(uri);
        (By::Server, "spec.table.uri".into())
    }

    fn odd_uri(&mut self, document: &mut Value) -> (By, String) {
        let uri = [
            "",
            "orchard",
            "file:///etc",
            "s3://maze-runs/../p",
            "s3://maze-runs/p/",
            "s3://maze-runs//p",
            "s3://maze-runs/%2e",
            "s3://maze-runs/a\\b",
            "s3://maze-runs/a\u{7}",
            "s3://ab/p",
            "S3://maze-runs/p",
        ];
        let long = format!("s3://maze-runs/{}", "é".repeat(1024));
        let uri = match self.random.random_range(0..=uri.len()) {
            at if at < uri.len() => uri[at],
            _ => &long,
        };
        document["spec"]["table"]["uri"] = json!(uri);
        (By::Server, "spec.table.uri".into())
    }

    fn bad_metadata(&mut self, document: &mut Value) -> (By, String) {
        let meta = &mut document["metadata"];
        match self.random.random_range(0..4) {
            0 => {
                let note = "x".repeat(self.random.random_range(262_145..400_000));
                meta["annotations"] = json!({ "note": note });
                (By::Server, "metadata.annotations".into())
            }
            1 => {
                meta["labels"] = json!({ "team": "two words" });
                (By::Server, "metadata.labels".into())
            }
            2 => {
                let name = self.pick(&["テーブル", "Plums", "a/b", "plums_1", "-plums", "naïve"]);
                meta["name"] = json!(name);
                (By::Server, "metadata.name".into())
            }
            _ => {
                meta["name"] = json!("x".repeat(254));
                (By::Server, "metadata.name".into())
            }
        }
    }

    /// A table of a name that could be, where there is none.
    fn name_of_many_tongues(&mut self, document: &mut Value) -> (By, String) {
        let name = self.pick(&[
            "テーブル",
            "наблюдение",
            "بيانات",
            "naïve café",
            "🌱",
            "a b",
        ]);
        let uri = format!("s3://maze-runs/{name}/{}", self.made);
        document["spec"]["table"]["uri"] = json!(uri);
        (By::Condition, uri)
    }

    fn forbidden_endpoint(&mut self, document: &mut Value) -> (By, String) {
        let place = [
            "http://169.254.169.254",
            "http://localhost:6443",
            "http://2130706433",
            "http://[::ffff:127.0.0.1]:80",
            "http://[fd00:ec2::254]",
            "http://0.0.0.0:9000",
            "http://0x7f.1",
            "http://100.100.100.200",
        ];
        let place = self.pick(&place);
        document["spec"]["table"]["storage"]["endpoint"] = json!(place);
        (By::Condition, "table.storage.endpoint".into())
    }

    fn no_leave(&mut self, document: &mut Value) -> (By, String) {
        let table = &mut document["spec"]["table"];
        match self.random.random_range(0..4) {
            0 => {
                table.as_object_mut().map(|t| t.remove("secretRef"));
                (By::Condition, "table.secretRef".into())
            }
            1 => {
                table["secretRef"] = json!({ "name": "no-such" });
                (
                    By::Condition,
                    "The Secret no-such of table.secretRef".into(),
                )
            }
            2 => {
                table["secretRef"] = json!({ "name": "unlabelled" });
                (
                    By::Condition,
                    "The Secret unlabelled of table.secretRef".into(),
                )
            }
            _ => {
                let name = self.pick(&["plums", "pears", "kelp"]);
                table["uri"] = json!(format!("s3://maze-runs/{name}"));
                (
                    By::Condition,
                    format!("The older Experiment {name} has this table"),
                )
            }
        }
    }
}

/// Sets what lies at a path, with the objects on the way.
fn set(into: &mut Value, path: &str, value: Value) {
    let (first, rest) = match path.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (path, None),
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    match rest {
        Some(rest) => set(&mut into[first], rest, value),
        None => into[first] = value,
    }
}
