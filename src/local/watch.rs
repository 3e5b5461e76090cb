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
use crate::api::Experiment;

/// Size and time of writing of every file.
type Look = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// Watches manifests.
pub struct Watch {
    paths: Vec<PathBuf>,
    /// What every file last said that was right.
    good: BTreeMap<PathBuf, Vec<Experiment>>,
    seen: Look,
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
        let mut names = BTreeSet::new();
        let all = self.good.values().flatten();
        // A kept state may name what another file has taken over since: the first keeps the name.
        let all = all.filter(|e| names.insert(e.metadata.name.clone()));
        Said {
            experiments: all.cloned().collect(),
            problems: loaded.problems,
            notes: loaded.notes,
            kept,
        }
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
