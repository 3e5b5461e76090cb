//! A folder as it is on disk, to say that nothing of it was changed.
//!
//! Lives here: `Tree`. May use: std. Never: Lance.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Every file of a folder with its bytes.
#[derive(PartialEq, Eq)]
pub struct Tree(BTreeMap<PathBuf, Vec<u8>>);

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map()
            .entries(self.0.iter().map(|(path, bytes)| (path, bytes.len())))
            .finish()
    }
}

impl Tree {
    pub fn of(dir: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut dirs = vec![dir.to_path_buf()];
        while let Some(next) = dirs.pop() {
            for entry in std::fs::read_dir(next).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => dirs.push(path),
                    false => {
                        let bytes = std::fs::read(&path).unwrap();
                        files.insert(path, bytes);
                    }
                }
            }
        }
        Self(files)
    }

    /// The files whose path holds `part`.
    pub fn find(&self, part: &str) -> Vec<PathBuf> {
        let paths = self.0.keys().filter(|p| p.to_str().unwrap().contains(part));
        paths.cloned().collect()
    }
}
