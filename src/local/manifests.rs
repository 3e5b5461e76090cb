//! Manifests: the YAML files from which `local` reads its Experiments, and everything that is wrong with them.
//!
//! Judges each document by the rules of `api` and names file, line and column of what breaks one. One bad document, or
//! one unreadable file, never hides the others. It may use `api` and the file system; it opens no table.
//!
//! What a `kubectl` user expects holds: a file has any number of documents, a directory means its `*.yaml` and `*.yml`
//! files (not those below), a `List` means its items. Documents of other API groups, which such directories hold too,
//! are skipped with a note; what claims to be Freshet's, or does not say what it is, must be an Experiment.

mod tree;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::api::{API_VERSION, Experiment, GROUP, KIND, Mode, TableIdentity, validate_document};
use tree::{Document, Node, Place};

/// The largest file that is read, in bytes.
pub const LARGEST_FILE: u64 = 4 * 1024 * 1024;

/// Where a document begins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The file, as it was named or found.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: u64,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// One thing that is wrong, or noteworthy, in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as it was named or found.
    pub file: PathBuf,
    /// The line, from 1; 0 where the file as a whole is meant.
    pub line: u64,
    /// The column, from 1; 0 where the file as a whole is meant.
    pub column: u64,
    /// The path of the field, as in `spec.freshness.target`; empty where none is meant.
    pub field: String,
    /// What is wrong, and the remedy.
    pub message: String,
}

/// `file:line:column: spec.freshness.target: what is wrong; the remedy`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:{}:", self.line, self.column)?;
        }
        if !self.field.is_empty() {
            write!(f, " {}:", self.field)?;
        }
        write!(f, " {}", self.message)
    }
}

/// What a set of files holds.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The valid Experiments, in the order of the files and of their documents. Names are unique, and so are tables.
    pub experiments: Vec<(Origin, Experiment)>,
    /// What was refused, in the same order.
    pub problems: Vec<Problem>,
    /// What was passed over on purpose: documents that are not Freshet's, directories without an Experiment.
    pub notes: Vec<Problem>,
}

/// Reads every Experiment of `paths`: files, whatever their names, and directories, of which the `*.yaml` and `*.yml`
/// files are read in the order of their names. A file without an Experiment is refused, a directory without one is noted.
///
/// Of two documents with one name, or with one table, the later is refused, and the problem names the place of the
/// other. Namespaces do not tell names apart here: the reader's API knows an Experiment by its name alone.
pub fn load(paths: &[PathBuf]) -> Loaded {
    let mut loader = Loader::default();
    for path in paths {
        loader.path(path);
    }
    loader.loaded
}

fn manifests_of(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let manifest = path.extension().is_some_and(|e| e == "yaml" || e == "yml");
        let hidden = path
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with('.'));
        if manifest && !hidden && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn whole(file: &Path, message: &str) -> Problem {
    Problem {
        file: file.to_owned(),
        line: 0,
        column: 0,
        field: String::new(),
        message: message.to_owned(),
    }
}

fn unreadable(error: &std::io::Error) -> String {
    format!(
        "cannot be read ({}); check the path and its permissions",
        error.kind()
    )
}

fn read(file: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let opened = fs::File::open(file).map_err(|e| unreadable(&e))?;
    opened
        .take(LARGEST_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| unreadable(&e))?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(format!(
            "is larger than {} MiB; split it into several files",
            LARGEST_FILE >> 20
        ));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        format!("is not UTF-8 (at byte {at}); save it as UTF-8")
    })
}

/// Reads files one after the other and remembers which names and tables it met.
#[derive(Default)]
struct Loader {
    loaded: Loaded,
    files: HashSet<PathBuf>,
    names: HashMap<String, Origin>,
    tables: HashMap<TableIdentity, (String, Origin)>,
}

impl Loader {
    /// A file or a directory that was named. What was read under another name is not read again.
    fn path(&mut self, path: &Path) {
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            files = match manifests_of(path) {
                Ok(files) => files,
                Err(error) => return self.loaded.problems.push(whole(path, &unreadable(&error))),
            };
            if files.is_empty() {
                let empty =
                    "the directory holds no *.yaml or *.yml file; add one, it is looked at again";
                return self.loaded.notes.push(whole(path, empty));
            }
        }
        files.retain(|file| {
            let real = fs::canonicalize(file).unwrap_or_else(|_| file.clone());
            self.files.insert(real)
        });
        let found = |loaded: &Loaded| loaded.experiments.len() + loaded.problems.len();
        let before = found(&self.loaded);
        for file in &files {
            self.file(file);
        }
        if files.is_empty() || found(&self.loaded) > before {
            return;
        }
        // A file that was named was meant; a directory may be filled later.
        match path.is_dir() {
            true => {
                let none = "the directory holds no Experiment yet; add one, it is looked at again";
                self.loaded.notes.push(whole(path, none));
            }
            false => {
                let none = format!(
                    "the file holds no Experiment; write one (kind {KIND} of {API_VERSION}), or name another file, or a directory, which may be filled later"
                );
                self.loaded.problems.push(whole(path, &none));
            }
        }
    }

    fn file(&mut self, file: &Path) {
        let text = match read(file) {
            Ok(text) => text,
            Err(message) => return self.loaded.problems.push(whole(file, &message)),
        };
        for document in tree::documents(&text) {
            match document {
                Ok(document) => self.document(file, &document),
                Err(e) => self.problem(file, e.place, "", e.message),
            }
        }
    }

    fn problem(&mut self, file: &Path, place: Place, field: &str, message: String) {
        let problem = Problem {
            file: file.to_owned(),
            line: place.line,
            column: place.column,
            field: field.to_owned(),
            message,
        };
        self.loaded.problems.push(problem);
    }

    fn document(&mut self, file: &Path, document: &Document) {
        let root = &document.root;
        let text = |name: &str| root.get(name).and_then(Node::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let group = version.split_once('/').map_or("", |(group, _)| group);
        if kind == "List" || (group == GROUP && kind == format!("{KIND}List")) {
            for (index, item) in root
                .get("items")
                .map(Node::items)
                .unwrap_or_default()
                .iter()
                .enumerate()
            {
                self.object(file, document, item, &format!("items[{index}]"));
            }
        } else if !version.is_empty() && !kind.is_empty() && group != GROUP && kind != KIND {
            let kind: String = kind.chars().take(64).collect();
            let message = format!(
                "a document of kind {kind} is not Freshet's and is skipped; `local` reads kind {KIND} of {API_VERSION}"
            );
            let place = root.place;
            let note = Problem {
                file: file.to_owned(),
                line: place.line,
                column: place.column,
                field: "kind".into(),
                message,
            };
            self.loaded.notes.push(note);
        } else {
            self.object(file, document, root, "");
        }
    }

    /// One object: a document, or an item of a list at `prefix`.
    fn object(&mut self, file: &Path, document: &Document, node: &Node, prefix: &str) {
        match validate_document(node.to_json(), Mode::Local) {
            Ok(experiment) => self.experiment(file, node, experiment),
            Err(violations) => {
                for violation in violations {
                    let path = join(prefix, &violation.field);
                    let place = document.place_of(&path);
                    self.problem(file, place, &path, violation.message);
                }
            }
        }
    }

    fn experiment(&mut self, file: &Path, node: &Node, experiment: Experiment) {
        let origin = Origin {
            file: file.to_owned(),
            line: node.place.line,
        };
        let name = experiment.metadata.name.clone().unwrap_or_default();
        if let Some(other) = self.names.get(&name) {
            let message =
                format!("an Experiment named {name} is already at {other}; rename one of the two");
            let place = node.place_of("metadata.name");
            return self.problem(file, place, "metadata.name", message);
        }
        // The rules have let the table pass, so it has an identity; without one there is nothing to compare.
        if let Ok(identity) = TableIdentity::of(&experiment.spec.table) {
            if let Some((other, at)) = self.tables.get(&identity) {
                let message = format!(
                    "this table is already Experiment {other}'s, at {at}; remove one of the two"
                );
                let place = node.place_of("spec.table.uri");
                return self.problem(file, place, "spec.table.uri", message);
            }
            self.tables.insert(identity, (name.clone(), origin.clone()));
        }
        self.names.insert(name, origin.clone());
        self.loaded.experiments.push((origin, experiment));
    }
}

fn join(prefix: &str, field: &str) -> String {
    match (prefix, field) {
        ("", field) => field.to_owned(),
        (prefix, "") => prefix.to_owned(),
        (prefix, field) => format!("{prefix}.{field}"),
    }
}

#[cfg(test)]
mod tests;
