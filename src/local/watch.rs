//! The manifests, and that they changed.
//!
//! Lives here: `Watch`, which reads the manifests of some files and directories, and again when a name, a size or a time
//! of writing moves. A file that is broken keeps what it last said, and says so. May use: the loader. Must never come in:
//! a judgement of an Experiment (`api`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::manifests::{Loaded, Problem, load};
use crate::api::{Experiment, TableIdentity};

/// Size and time of writing of every file.
type Look = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// Watches manifests.
pub struct Watch {
    paths: Vec<PathBuf>,
    /// What every file last said that was right.
    good: BTreeMap<PathBuf, Vec<Experiment>>,
    seen: Look,
    /// Who had which name and which table when it was last read.
    had: BTreeSet<Claim>,
}

/// That an experiment of a file has a name and a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    file: PathBuf,
    name: String,
    table: Option<TableIdentity>,
}

impl Claim {
    fn of(file: &Path, experiment: &Experiment) -> Self {
        Self {
            file: file.to_owned(),
            name: experiment.metadata.name.clone().unwrap_or_default(),
            table: TableIdentity::of(&experiment.spec.table).ok(),
        }
    }
}

/// What the manifests say now.
pub struct Said {
    /// The experiments.
    pub experiments: Vec<Experiment>,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// What was passed over on purpose.
    pub notes: Vec<Problem>,
    /// Files whose last good state is kept.
    pub kept: Vec<PathBuf>,
}

impl Watch {
    /// A watch over files and directories.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            good: BTreeMap::new(),
            seen: Look::new(),
            had: BTreeSet::new(),
        }
    }

    /// Reads everything, if it was never read or if anything moved since.
    pub fn changed(&mut self, first: bool) -> Option<Said> {
        let look = self.look();
        if !first && look == self.seen {
            return None;
        }
        self.seen = look;
        Some(self.take(load(&self.paths)))
    }

    fn take(&mut self, loaded: Loaded) -> Said {
        let broken: BTreeSet<PathBuf> = loaded.problems.iter().map(|p| p.file.clone()).collect();
        let mut good: BTreeMap<PathBuf, Vec<Experiment>> = BTreeMap::new();
        for (origin, experiment) in loaded.experiments {
            good.entry(origin.file).or_default().push(experiment);
        }
        let mut kept = vec![];
        for file in broken.iter().filter(|file| file.exists()) {
            if let Some(before) = self.good.get(file) {
                good.insert(file.clone(), before.clone());
                kept.push(file.clone());
            }
        }
        self.good = good;
        let mut problems = loaded.problems;
        let experiments = self.claimed(&mut problems);
        Said {
            experiments,
            problems,
            notes: loaded.notes,
            kept,
        }
    }

    /// Every experiment that has its name and its table to itself. Whoever had them keeps them: a new file beside one that is
    /// suspended, or broken for a moment, may not take its table over.
    fn claimed(&mut self, problems: &mut Vec<Problem>) -> Vec<Experiment> {
        let all = self.good.iter();
        let all = all.flat_map(|(file, of)| of.iter().map(move |e| (file, e)));
        let (old, new): (Vec<_>, Vec<_>) =
            all.partition(|(file, e)| self.had.contains(&Claim::of(file, e)));
        let (mut names, mut tables) = (BTreeSet::new(), BTreeSet::new());
        let (mut had, mut experiments) = (BTreeSet::new(), vec![]);
        for (file, e) in old.into_iter().chain(new) {
            let claim = Claim::of(file, e);
            let taken = match &claim.table {
                _ if names.contains(&claim.name) => "name",
                Some(table) if tables.contains(table) => "table",
                _ => {
                    names.insert(claim.name.clone());
                    tables.extend(claim.table.clone());
                    had.insert(claim);
                    experiments.push(e.clone());
                    continue;
                }
            };
            let name = claim.name;
            problems.push(Problem {
                file: file.clone(),
                line: 0,
                column: 0,
                field: String::new(),
                message: format!(
                    "the Experiment {name} is left out: its {taken} is another file's already; remove one of the two"
                ),
            });
        }
        self.had = had;
        experiments
    }

    fn look(&self) -> Look {
        let mut look = Look::new();
        for path in &self.paths {
            if path.is_dir() {
                look.insert(path.clone(), (0, None));
                for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                    note(&mut look, &entry.path());
                }
            } else {
                note(&mut look, path);
            }
        }
        look
    }
}

fn note(look: &mut Look, file: &Path) {
    let found = fs::metadata(file).ok();
    let facts = found.map_or((u64::MAX, None), |m| (m.len(), m.modified().ok()));
    look.insert(file.to_owned(), facts);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(target: &str) -> String {
        format!(
            "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata: {{name: maze}}\nspec:\n  table: {{uri: /data/maze.lance}}\n  freshness: {{target: {target}}}\n"
        )
    }

    fn target(said: &Said) -> String {
        let freshness = said.experiments[0].spec.freshness.as_ref();
        freshness.and_then(|f| f.target).unwrap().to_string()
    }

    #[test]
    fn a_broken_edit_keeps_the_last_good_state_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("maze.yaml");
        fs::write(&file, manifest("30s")).unwrap();
        let mut watch = Watch::new(vec![dir.path().to_owned()]);
        let first = watch.changed(true).unwrap();
        assert_eq!(target(&first), "30s");
        assert!(watch.changed(false).is_none());
        fs::write(&file, manifest("soonish")).unwrap();
        let broken = watch.changed(false).unwrap();
        assert_eq!(target(&broken), "30s");
        assert_eq!(
            (broken.problems.len(), broken.kept),
            (1, vec![file.clone()])
        );
        fs::write(&file, manifest("4s")).unwrap();
        let mended = watch.changed(false).unwrap();
        assert_eq!(target(&mended), "4s");
        assert!(mended.kept.is_empty());
    }

    #[test]
    fn a_new_file_does_not_take_over_the_table_of_a_suspended_experiment() {
        let dir = tempfile::tempdir().unwrap();
        let idle = manifest("30s").replace("spec:\n", "spec:\n  suspend: true\n");
        fs::write(dir.path().join("idle.yaml"), &idle).unwrap();
        let mut watch = Watch::new(vec![dir.path().to_owned()]);
        assert_eq!(watch.changed(true).unwrap().experiments.len(), 1);
        // Its name is another and comes first.
        let dup = manifest("4s").replace("name: maze", "name: alder");
        fs::write(dir.path().join("dup.yaml"), dup).unwrap();
        let alone = |said: &Said| {
            let names = said.experiments.iter().map(|e| e.metadata.name.clone());
            assert_eq!(names.collect::<Vec<_>>(), [Some("maze".to_owned())]);
            assert!(said.experiments[0].spec.suspend);
        };
        let both = watch.changed(false).unwrap();
        alone(&both);
        let said: Vec<String> = both.problems.iter().map(ToString::to_string).collect();
        assert!(
            said.iter().any(|p| p.contains("alder is left out")),
            "{said:?}"
        );
        // Nor while the file that has it is broken.
        fs::write(dir.path().join("idle.yaml"), idle.replace("30s", "soon")).unwrap();
        alone(&watch.changed(false).unwrap());
        fs::remove_file(dir.path().join("idle.yaml")).unwrap();
        let left = watch.changed(false).unwrap();
        assert_eq!(left.experiments[0].metadata.name.as_deref(), Some("alder"));
    }

    #[test]
    fn a_file_that_goes_takes_its_experiments_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("maze.yaml");
        fs::write(&file, manifest("30s")).unwrap();
        let mut watch = Watch::new(vec![dir.path().to_owned()]);
        assert_eq!(watch.changed(true).unwrap().experiments.len(), 1);
        fs::remove_file(&file).unwrap();
        assert!(watch.changed(false).unwrap().experiments.is_empty());
    }
}
