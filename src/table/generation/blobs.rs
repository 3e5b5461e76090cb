//! Where a generation's blobs are.
//!
//! Lives here: the refusal of blobs that lie outside the table, before anything is asked for: a row is input, not an
//! instruction to fetch what it names (contract 21). May use: Lance's descriptors of blobs. Never: a blob's bytes.

use std::sync::Arc;

use arrow_array::{StructArray, cast::AsArray, types::UInt8Type};
use futures::TryStreamExt;
use lance::Dataset;
use lance_core::datatypes::{BlobHandling, BlobKind, Schema};

use super::super::error::Result;
use super::Generation;

/// Refuses a generation with a blob that is not in files of its own.
pub(super) async fn refuse_foreign(
    of: &Generation,
    dataset: &Arc<Dataset>,
    schema: &Schema,
) -> Result<()> {
    let blobs = schema.fields.iter().filter(|f| f.is_blob_v2());
    let blobs: Vec<&str> = blobs.map(|f| f.name.as_str()).collect();
    if blobs.is_empty() {
        return Ok(());
    }
    let failed = |e| of.wrap("read where its blobs are", e);
    let mut scan = dataset.scan();
    scan.blob_handling(BlobHandling::BlobsDescriptions);
    scan.project(&blobs).map_err(failed)?;
    scan.batch_size(8192);
    let mut rows = scan.try_into_stream().await.map_err(failed)?;
    while let Some(batch) = rows.try_next().await.map_err(failed)? {
        let columns = batch.columns().iter().filter_map(|c| c.as_struct_opt());
        if columns.into_iter().any(any_leads_out) {
            return Err(of.foreign());
        }
    }
    Ok(())
}

/// Whether any of these descriptors leads out of the dataset that holds them.
pub(crate) fn any_leads_out(column: &StructArray) -> bool {
    let kinds = column
        .column_by_name("kind")
        .and_then(|k| k.as_primitive_opt::<UInt8Type>());
    let uris = column
        .column_by_name("blob_uri")
        .or(column.column_by_name("uri"))
        .and_then(|u| u.as_string_opt::<i32>());
    let kind = |kind: Option<u8>| {
        // What Lance adds to the kinds is nobody's own until it is looked at here.
        kind.is_some_and(|kind| match BlobKind::try_from(kind) {
            Ok(BlobKind::Inline | BlobKind::Packed | BlobKind::Dedicated | BlobKind::Managed) => {
                false
            }
            Ok(BlobKind::External | BlobKind::ManagedWithBase) | Err(_) => true,
        })
    };
    kinds.is_some_and(|kinds| kinds.iter().any(kind))
        || uris.is_some_and(|uris| uris.iter().flatten().any(leads_out))
}

/// Whether a blob's address is any but a plain path below the place of its dataset.
fn leads_out(uri: &str) -> bool {
    let part = |part: &str| part.is_empty() || part == "." || part == "..";
    !uri.is_empty() && (uri.contains(['\\', ':', '%']) || uri.split('/').any(part))
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, StringArray, UInt8Array};

    use super::*;

    fn descriptor(kind: u8, uri: &str) -> StructArray {
        let kind: ArrayRef = Arc::new(UInt8Array::from(vec![0, kind]));
        let uri: ArrayRef = Arc::new(StringArray::from(vec!["", uri]));
        StructArray::try_from(vec![("kind", kind), ("blob_uri", uri)]).unwrap()
    }

    #[test]
    fn only_a_plain_path_stays_within_its_dataset() {
        for uri in [
            "../secret",
            "data/../../secret",
            "data/..",
            "./data",
            "/etc/passwd",
            "file:/etc/passwd",
            "file:///etc/passwd",
            "s3://other/secret",
            "data//x",
            "..\\secret",
            "%2e%2e/secret",
            "data/",
        ] {
            assert!(any_leads_out(&descriptor(4, uri)), "{uri}");
        }
        for uri in ["", "data/x.blob", "managed/ab/..cd"] {
            assert!(!any_leads_out(&descriptor(4, uri)), "{uri}");
        }
    }

    #[test]
    fn a_blob_that_is_not_the_tables_own_leads_out_whatever_its_address() {
        for (kind, out) in [
            (0, false),
            (1, false),
            (2, false),
            (3, true),
            (5, true),
            (6, true),
        ] {
            assert_eq!(any_leads_out(&descriptor(kind, "data/x")), out, "{kind}");
        }
    }
}
