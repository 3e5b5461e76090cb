//! The file of the keys that cursors are signed with.
//!
//! Lives here: reading it at the start, where a mistake ends the process, and again when it changes, where a mistake keeps
//! the keys that were good. May use: the server's keys. Must never come in: what is in the file, in a message.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::server::CursorKeys;

/// The longest file that is read.
const LONGEST: u64 = 16 << 10;

/// Keys, and where they were read.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    keys: CursorKeys,
    stamp: Option<Stamp>,
}

type Stamp = (SystemTime, u64);

impl KeyFile {
    /// Reads the file.
    ///
    /// # Errors
    /// What is wrong with it, with its name.
    pub fn open(path: &Path) -> Result<Self, String> {
        let stamp = stamp(path);
        Ok(Self {
            path: path.to_owned(),
            keys: read(path)?,
            stamp,
        })
    }

    /// The keys, which change when the file does.
    pub fn keys(&self) -> CursorKeys {
        self.keys.clone()
    }

    /// Reads the file again where it moved.
    pub fn look(&mut self) {
        let now = stamp(&self.path);
        if now == self.stamp {
            return;
        }
        self.stamp = now;
        match read(&self.path) {
            Ok(keys) => {
                self.keys.replace(&keys);
                tracing::info!(keys = ?self.keys, "cursor keys read again");
            }
            Err(why) => tracing::error!("the cursor keys stay as they were: {why}"),
        }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

fn read(path: &Path) -> Result<CursorKeys, String> {
    let name = path.display();
    let meta = fs::metadata(path).map_err(|e| format!("{name} cannot be read: {}", e.kind()))?;
    if !meta.is_file() || meta.len() > LONGEST {
        return Err(format!("{name} is no file of cursor keys"));
    }
    let text =
        fs::read_to_string(path).map_err(|e| format!("{name} cannot be read: {}", e.kind()))?;
    CursorKeys::parse(&text).map_err(|e| format!("{name}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

    #[test]
    fn a_file_that_changes_is_read_again_and_a_broken_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        assert!(KeyFile::open(&path).unwrap_err().contains("cannot be read"));
        assert!(KeyFile::open(dir.path()).is_err());
        fs::write(&path, format!("one {ONE}")).unwrap();
        let mut file = KeyFile::open(&path).unwrap();
        let keys = file.keys();
        assert_eq!(keys.ids(), ["one"]);
        fs::write(&path, format!("two {ONE}\none {ONE}")).unwrap();
        file.look();
        assert_eq!(keys.ids(), ["two", "one"]);
        for broken in ["", "two", "two AAAA"] {
            fs::write(&path, broken).unwrap();
            file.look();
            assert_eq!(keys.ids(), ["two", "one"]);
        }
        fs::remove_file(&path).unwrap();
        file.look();
        assert_eq!(keys.ids(), ["two", "one"]);
        assert!(!format!("{file:?}").contains("AAAA"));
    }
}
