//! Files as people write them, and as nobody should.

use std::fs;

use super::*;

/// A directory of files, loaded as a whole.
struct Folder(tempfile::TempDir);

impl Folder {
    fn of(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (name, content) in files {
            fs::write(folder.0.path().join(name), content).unwrap();
        }
        folder
    }

    fn load(&self) -> Loaded {
        load(&[self.0.path().to_owned()])
    }

    /// The problems without the folder's own path.
    fn problems(&self) -> Vec<String> {
        let prefix = format!("{}/", self.0.path().display());
        self.load()
            .problems
            .iter()
            .map(|p| p.to_string().replace(&prefix, ""))
            .collect()
    }
}

fn names(loaded: &Loaded) -> Vec<(&str, u64)> {
    loaded
        .experiments
        .iter()
        .map(|(o, e)| (e.metadata.name.as_deref().unwrap_or_default(), o.line))
        .collect()
}

fn manifest(name: &str, uri: &str) -> String {
    format!(
        "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata:\n  name: {name}\nspec:\n  table:\n    uri: {uri}\n"
    )
}

#[test]
fn files_and_documents_are_read_in_the_order_of_names() {
    let two = format!(
        "# first\n---\n{}---\n{}...\n",
        manifest("b1", "/t/b1"),
        manifest("b2", "s3://bkt/b2")
    );
    let folder = Folder::of(&[
        ("b.yml", &two),
        ("a.yaml", &manifest("a", "/t/a")),
        ("c.txt", "not: read"),
        (".hidden.yaml", "not: read"),
    ]);
    fs::create_dir(folder.0.path().join("d.yaml")).unwrap();
    let loaded = folder.load();
    assert_eq!(loaded.problems, []);
    assert_eq!(names(&loaded), [("a", 1), ("b1", 3), ("b2", 11)]);
}

#[test]
fn a_file_named_by_itself_is_read_whatever_its_name_and_only_once() {
    let folder = Folder::of(&[
        ("manifest", &manifest("a", "/t/a")),
        ("b.yaml", &manifest("b", "/t/b")),
    ]);
    let path = folder.0.path();
    let loaded = load(&[
        path.join("manifest"),
        path.join("./manifest"),
        path.to_owned(),
        path.join("b.yaml"),
    ]);
    assert_eq!(loaded.problems, []);
    assert_eq!(names(&loaded), [("a", 1), ("b", 1)]);
}

#[test]
fn a_problem_names_file_line_column_field_and_remedy() {
    let folder = Folder::of(&[(
        "a.yaml",
        "---\napiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata:\n  name: a\nspec:\n  table:\n    uri: s3://bkt/a\n  freshness:\n    # too eager\n    target: 0s\n",
    )]);
    assert_eq!(
        folder.problems(),
        [
            "a.yaml:11:5: spec.freshness.target: freshness.target must be longer than 0s; it is the age that no pending generation may exceed, as in 60s"
        ]
    );
}

#[test]
fn each_problem_is_at_the_line_of_its_field() {
    let folder = Folder::of(&[(
        "a.yaml",
        r#"apiVersion: freshet.dev/v1alpha1
kind: Experiment
metadata: {name: Upper}
spec:
  table:
    uri: "s3://key:secret@bkt/p"
    storage:
      endpoint: http://minio
      proxy_url: x
  freshness: {target: soon,
    mergeAt: {bytes: 0Gi}}
  retention:
    versions:
      olderThan: 10m
  deletionPolicy: >-
    Never
"#,
    )]);
    let problems = folder.load().problems;
    let found: Vec<_> = problems
        .iter()
        .map(|p| (p.line, p.field.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (3, "metadata.name"),
            (15, "spec.deletionPolicy"),
            (11, "spec.freshness.mergeAt.bytes"),
            (10, "spec.freshness.target"),
            (14, "spec.retention.versions.olderThan"),
            (8, "spec.table.storage.endpoint"),
            (9, "spec.table.storage.proxy_url"),
            (6, "spec.table.uri"),
        ]
    );
    assert!(
        problems.iter().all(|p| !p.to_string().contains("secret@")),
        "{problems:#?}"
    );
}

#[test]
fn a_missing_field_is_told_at_the_line_of_the_map_that_lacks_it() {
    let folder = Folder::of(&[(
        "a.yaml",
        "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata:\n  name: a\nspec:\n  table: {}\n",
    )]);
    let problem = &folder.load().problems[0];
    assert_eq!(
        (problem.line, problem.column, problem.field.as_str()),
        (6, 3, "spec.table.uri")
    );
}

#[test]
fn one_bad_document_never_hides_the_others() {
    let mut text = manifest("one", "/t/one");
    for bad in [
        "a: [1, 2\n",
        "a: b: c\n",
        "\tkind: Experiment\n",
        "just text\n",
        "- a list\n",
        "\"unclosed\n",
        "a: 1\na: 2\n",
        "a: *nowhere\n",
        "%BAD\n",
        "? {a: b}\n: c\n",
        "!!python/object:os.system [x]\n",
    ] {
        text.push_str("---\n");
        text.push_str(bad);
    }
    text.push_str(&format!("---\n{}", manifest("two", "/t/two")));
    let folder = Folder::of(&[
        ("a.yaml", &text),
        ("b.yaml", &manifest("three", "/t/three")),
    ]);
    fs::write(folder.0.path().join("c.yaml"), b"kind: \xff\xfe").unwrap();
    let loaded = folder.load();
    assert_eq!(
        names(&loaded).iter().map(|(n, _)| *n).collect::<Vec<_>>(),
        ["one", "two", "three"]
    );
    let mut lines: Vec<_> = loaded.problems.iter().map(|p| p.line).collect();
    lines.dedup();
    assert!(lines.len() >= 11, "{:#?}", loaded.problems);
    assert!(
        loaded.problems.iter().any(|p| p.message.contains("UTF-8")),
        "{:#?}",
        loaded.problems
    );
}

#[test]
fn a_name_or_a_table_is_taken_once_and_the_problem_names_both_places() {
    let az = "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata:\n  name: az\nspec:\n  table:\n    storage: {account: acct}\n    uri: az://cont/p\n";
    let folder = Folder::of(&[
        ("a.yaml", &manifest("a", "/t/a")),
        (
            "b.yaml",
            &format!(
                "{}---\n{}",
                manifest("a", "/t/other"),
                manifest("b", "file:///t/./a")
            ),
        ),
        ("c.yaml", az),
        (
            "d.yaml",
            &manifest("d", "abfss://cont@acct.dfs.core.windows.net/p"),
        ),
    ]);
    let loaded = folder.load();
    assert_eq!(names(&loaded), [("a", 1), ("az", 1)]);
    let root = folder.0.path().display().to_string();
    assert_eq!(
        folder.problems(),
        [
            format!("b.yaml:4:3: metadata.name: an Experiment named a is already at {root}/a.yaml:1; rename one of the two").replace(&format!("{root}/"), ""),
            "b.yaml:15:5: spec.table.uri: this table is already Experiment a's, at a.yaml:1; remove one of the two".into(),
            "d.yaml:7:5: spec.table.uri: this table is already Experiment az's, at c.yaml:1; remove one of the two".into(),
        ]
    );
}

#[test]
fn documents_of_other_groups_are_skipped_with_a_note_and_what_claims_to_be_ours_is_not() {
    let folder = Folder::of(&[(
        "a.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n---\napiVersion: apps/v1\nkind: Deployment\n---\napiVersion: freshet.dev/v1alpha1\nkind: Experimant\nmetadata: {name: a}\n---\nkind: Experiment\nmetadata: {name: b}\n---\napiVersion: freshet.dev/v9\nkind: Experiment\n---\nname: c\n---\napiVersion: batch/v1\nkind: Experiment\n",
    )]);
    let loaded = folder.load();
    let notes: Vec<_> = loaded
        .notes
        .iter()
        .map(|n| (n.line, n.message.contains("skipped")))
        .collect();
    assert_eq!(notes, [(1, true), (5, true)]);
    let problems: Vec<_> = loaded
        .problems
        .iter()
        .map(|p| (p.line, p.field.as_str()))
        .collect();
    for wanted in [
        (9, "kind"),
        (12, "apiVersion"),
        (15, "apiVersion"),
        (18, "kind"),
        (20, "apiVersion"),
    ] {
        assert!(problems.contains(&wanted), "{wanted:?}: {problems:?}");
    }
    assert!(loaded.experiments.is_empty());
}

#[test]
fn a_list_means_its_items() {
    let item = |name: &str, target: &str| {
        format!(
            "- apiVersion: freshet.dev/v1alpha1\n  kind: Experiment\n  metadata: {{name: {name}}}\n  spec:\n    table: {{uri: /t/{name}}}\n    freshness: {{target: {target}}}\n"
        )
    };
    let text = format!(
        "apiVersion: v1\nkind: List\nitems:\n{}{}",
        item("a", "1m"),
        item("b", "never")
    );
    let folder = Folder::of(&[("a.yaml", &text)]);
    let loaded = folder.load();
    assert_eq!(names(&loaded), [("a", 4)]);
    assert_eq!(
        (loaded.problems[0].line, loaded.problems[0].field.as_str()),
        (15, "items[1].spec.freshness.target")
    );
}

#[test]
fn anchors_and_merge_keys_work_and_blame_the_place_of_their_use() {
    let folder = Folder::of(&[(
        "a.yaml",
        "apiVersion: freshet.dev/v1alpha1\nkind: Experiment\nmetadata:\n  name: a\n  annotations: {x: &uri /t/a}\nspec:\n  table:\n    uri: *uri\n  retention: &r\n    drainDelay: 1m\n  deletion:\n    timeout: &zero 0s\n  freshness:\n    target: *zero\n",
    )]);
    let problems = folder.load().problems;
    let found: Vec<_> = problems
        .iter()
        .map(|p| (p.line, p.field.as_str()))
        .collect();
    assert_eq!(
        found,
        [(12, "spec.deletion.timeout"), (14, "spec.freshness.target")]
    );
}

#[test]
fn a_document_that_grows_out_of_all_bounds_is_refused() {
    let mut laughs = String::from("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        laughs.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            vec![below; 10].join(", ")
        ));
    }
    let deep = format!("a: {}1{}\n", "[".repeat(50_000), "]".repeat(50_000));
    let nested = (0..5_000)
        .map(|level| format!("{}a:\n", " ".repeat(level.min(900))))
        .collect::<String>();
    let wide = format!("a: [{}]\n", "1,".repeat(200_000));
    for bad in [laughs, deep, nested, wide] {
        let text = format!("{bad}---\n{}", manifest("a", "/t/a"));
        let folder = Folder::of(&[("a.yaml", &text)]);
        let loaded = folder.load();
        assert_eq!(names(&loaded).len(), 1, "{:?}", loaded.problems);
        assert_eq!(loaded.problems.len(), 1, "{:?}", loaded.problems);
        assert!(loaded.problems[0].message.len() < 600);
    }
}

#[test]
fn the_deepest_document_that_is_read_fits_a_small_stack() {
    let deepest = (0..22)
        .map(|level| format!("{}a:\n", " ".repeat(level)))
        .collect::<String>();
    let text = format!(
        "{deepest}{}- 1\n---\n{}",
        " ".repeat(22),
        manifest("a", "/t/a")
    );
    let folder = Folder::of(&[("a.yaml", &text)]);
    let small = std::thread::Builder::new().stack_size(1 << 20);
    let loaded = small.spawn(move || folder.load()).unwrap().join().unwrap();
    assert_eq!(names(&loaded).len(), 1);
    let yaml = loaded.problems.iter().any(|p| p.message.contains("YAML"));
    assert!(!yaml, "{:#?}", loaded.problems);
}

#[test]
fn a_giant_file_is_refused_before_it_is_read() {
    let folder = Folder::of(&[]);
    let file = fs::File::create(folder.0.path().join("a.yaml")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(
        folder.problems(),
        ["a.yaml: is larger than 4 MiB; split it into several files"]
    );
}

#[test]
fn a_file_of_very_many_documents_is_bounded() {
    let folder = Folder::of(&[("a.yaml", &"---\na\n".repeat(500_000))]);
    assert_eq!(folder.load().problems.len(), 10_001);
}

#[test]
fn what_cannot_be_read_is_a_problem_and_an_empty_folder_a_note() {
    let folder = Folder::of(&[
        ("empty.yaml", ""),
        (
            "comment.yaml",
            "# nothing\n---\n# still nothing\n--- null\n",
        ),
    ]);
    let missing = folder.0.path().join("missing.yaml");
    let loaded = load(&[folder.0.path().to_owned(), missing.clone()]);
    assert_eq!(loaded.problems.len(), 1);
    assert_eq!(loaded.problems[0].file, missing);
    assert!(
        loaded.problems[0].message.contains("check the path"),
        "{}",
        loaded.problems[0]
    );
    let empty = tempfile::tempdir().unwrap();
    let loaded = load(&[empty.path().to_owned()]);
    assert_eq!((loaded.problems.len(), loaded.notes.len()), (0, 1));
}

#[test]
fn a_file_that_was_named_and_holds_no_experiment_is_refused_and_a_directory_may_be_filled_later() {
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n";
    let folder = Folder::of(&[
        ("empty.yaml", ""),
        ("nulls.yaml", "# nothing\n---\n"),
        ("other.yaml", other),
    ]);
    let inside = |name: &str| folder.0.path().join(name);
    for name in ["empty.yaml", "nulls.yaml", "other.yaml"] {
        let loaded = load(&[inside(name)]);
        assert_eq!(loaded.problems.len(), 1, "{name}");
        let said = loaded.problems[0].to_string();
        assert!(
            said.contains(name) && said.contains("holds no Experiment"),
            "{said}"
        );
    }
    let last = |loaded: &Loaded| loaded.notes.last().unwrap().to_string();
    let loaded = folder.load();
    assert_eq!(loaded.problems, []);
    assert!(
        last(&loaded).contains("holds no Experiment yet"),
        "{}",
        last(&loaded)
    );
    // Read by the name of its directory, it is not read again by its own; a good one beside it changes nothing.
    std::fs::write(inside("a.yaml"), manifest("a", "/t/a")).unwrap();
    let both = load(&[folder.0.path().to_owned(), inside("empty.yaml")]);
    assert_eq!((both.experiments.len(), both.problems.len()), (1, 0));
    let each = load(&[inside("a.yaml"), inside("empty.yaml")]);
    assert_eq!((each.experiments.len(), each.problems.len()), (1, 1));
}

#[test]
fn windows_line_ends_byte_order_marks_and_unicode_are_read() {
    let text = format!(
        "\u{feff}{}",
        manifest("a", "\"/t/テーブル 🦀\"").replace('\n', "\r\n")
    );
    let text = format!(
        "{text}---\r\n{}",
        manifest("b", "s3://bkt/ünï").replace('\n', "\r\n")
    );
    let folder = Folder::of(&[("ä.yaml", &text)]);
    let loaded = folder.load();
    assert_eq!(loaded.problems, []);
    assert_eq!(names(&loaded), [("a", 1), ("b", 9)]);
    assert_eq!(loaded.experiments[0].1.spec.table.uri, "/t/テーブル 🦀");
}

#[test]
fn values_are_typed_as_yaml_types_them() {
    let text = manifest("a", "/t/a")
        + "  suspend: true\n  merge:\n    maxGenerationsPerMerge: 0x10\n    maxBytesPerMerge: 4096\n  indexes: ~\n  compaction:\n";
    let folder = Folder::of(&[("a.yaml", &text)]);
    let problems = folder.problems();
    assert_eq!(
        problems,
        [
            "a.yaml:11:5: spec.merge.maxBytesPerMerge: must be a string, but is a number; put it in quotes"
        ]
    );
    let folder = Folder::of(&[("a.yaml", &text.replace("4096", "\"4096\""))]);
    let loaded = folder.load();
    assert_eq!(loaded.problems, []);
    let spec = &loaded.experiments[0].1.spec;
    assert!(spec.suspend);
    assert_eq!(
        spec.merge.as_ref().unwrap().max_generations_per_merge,
        Some(16)
    );
    assert_eq!((&spec.indexes, &spec.compaction), (&None, &None));
}
