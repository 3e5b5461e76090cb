//! The plain way to merge, which every other result is compared with: one generation per commit, by `merge_insert`.
//!
//! Lives here: a generation's rows read as the dataset that it is, its columns found by field id, deletes and updates by
//! Lance's own builder. May use: lance. Never: Freshet, which is what is judged; safety beside other mergers.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchIterator, new_null_array};
use arrow_schema::{Field, Schema as ArrowSchema};
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::mem_wal::{DatasetMemWalExt, ShardManifestStore, TOMBSTONE};
use lance::dataset::write::merge_insert::UncommittedMergeInsert;
use lance::dataset::{
    CommitBuilder, InsertBuilder, MergeInsertBuilder, WhenMatched, WhenNotMatched, WriteMode,
    WriteParams,
};
use lance_index::mem_wal::{CompactedSsTable, SsTable};
use uuid::Uuid;

/// Pending generations of every shard, oldest first.
pub async fn pending(dataset: &Dataset) -> Vec<(Uuid, Vec<SsTable>)> {
    let store = dataset.object_store(None).await.unwrap();
    let base = dataset.branch_location().path;
    let details = dataset.mem_wal_index_details().await.unwrap().unwrap();
    let mut out = vec![];
    for id in dataset.list_mem_wal_latest_shard_ids().await.unwrap() {
        let manifest = ShardManifestStore::new(store.clone(), &base, id, 2)
            .latest()
            .await
            .unwrap();
        let marks = &details.compacted_sstables;
        let mark = marks
            .iter()
            .find(|c| c.shard_id == id)
            .map_or(0, |c| c.generation);
        let mut listed = manifest.map(|m| m.sstables).unwrap_or_default();
        listed.retain(|s| s.generation > mark);
        listed.sort_by_key(|s| s.generation);
        out.push((id, listed));
    }
    out.sort_by_key(|s| s.0);
    out
}

/// A generation's living rows in the table's columns, and the keys that it deletes.
pub async fn generation(
    dataset: &Dataset,
    shard: Uuid,
    of: &SsTable,
) -> (RecordBatch, Option<RecordBatch>) {
    let uri = format!(
        "{}/_mem_wal/{shard}/{}",
        dataset.uri().trim_end_matches('/'),
        of.path
    );
    let generation = Dataset::open(&uri).await.unwrap();
    let schema = Arc::new(ArrowSchema::from(generation.schema()));
    let batches: Vec<_> = generation
        .scan()
        .try_into_stream()
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let rows = concat_batches(&schema, &batches).unwrap();
    let dead: Vec<bool> = match rows.column_by_name(TOMBSTONE) {
        Some(column) => column
            .as_boolean()
            .iter()
            .map(|d| d == Some(true))
            .collect(),
        None => vec![false; rows.num_rows()],
    };
    let pick = |wanted: bool| {
        let keep: BooleanArray = dead.iter().map(|d| Some(*d == wanted)).collect();
        filter_record_batch(&rows, &keep).unwrap()
    };
    let (live, gone) = (pick(false), pick(true));
    let target: ArrowSchema = dataset.schema().into();
    let column = |batch: &RecordBatch, field: &Field| -> ArrayRef {
        let id = dataset.schema().field(field.name()).unwrap().id;
        let own = generation
            .schema()
            .fields
            .iter()
            .find(|f| f.id == id && f.name != TOMBSTONE);
        match own {
            Some(own) => batch.column_by_name(&own.name).unwrap().clone(),
            None => new_null_array(field.data_type(), batch.num_rows()),
        }
    };
    let columns = target.fields().iter().map(|f| column(&live, f)).collect();
    let live = RecordBatch::try_new(Arc::new(target.clone()), columns).unwrap();
    let keys: Vec<String> = dataset
        .schema()
        .unenforced_primary_key()
        .iter()
        .map(|f| f.name.clone())
        .collect();
    let fields: Vec<Field> = keys
        .iter()
        .map(|k| target.field_with_name(k).unwrap().clone())
        .collect();
    let gone = (gone.num_rows() > 0).then(|| {
        let columns = fields.iter().map(|f| column(&gone, f)).collect();
        RecordBatch::try_new(Arc::new(ArrowSchema::new(fields.clone())), columns).unwrap()
    });
    (live, gone)
}

/// Merges everything that is pending, one generation per commit. Nobody else may write meanwhile.
pub async fn merge_all(uri: &str) {
    let mut dataset = Arc::new(Dataset::open(uri).await.unwrap());
    for (shard, generations) in pending(&dataset).await {
        for of in generations {
            dataset = merge_one(dataset, shard, &of).await;
        }
    }
}

async fn merge_one(mut dataset: Arc<Dataset>, shard: Uuid, of: &SsTable) -> Arc<Dataset> {
    let (live, gone) = generation(&dataset, shard, of).await;
    if dataset.schema().unenforced_primary_key().is_empty() {
        let params = WriteParams {
            mode: WriteMode::Append,
            ..Default::default()
        };
        let done = InsertBuilder::new(dataset)
            .with_params(&params)
            .execute(vec![live])
            .await
            .unwrap();
        return Arc::new(done);
    }
    if let Some(gone) = gone {
        let mut job = MergeInsertBuilder::try_new(dataset.clone(), vec![]).unwrap();
        job.when_matched(WhenMatched::Delete)
            .when_not_matched(WhenNotMatched::DoNothing);
        let source = RecordBatchIterator::new(vec![Ok(gone.clone())], gone.schema());
        let job = job.try_build().unwrap();
        dataset = job
            .execute_reader(Box::new(source) as Box<dyn arrow_array::RecordBatchReader + Send>)
            .await
            .unwrap()
            .0;
    }
    let mut job = MergeInsertBuilder::try_new(dataset, vec![]).unwrap();
    job.when_matched(WhenMatched::UpdateAll)
        .when_not_matched(WhenNotMatched::InsertAll)
        .mark_sstables_as_compacted(vec![CompactedSsTable::new(shard, of.generation)]);
    job.try_build()
        .unwrap()
        .execute_batches(vec![live])
        .await
        .unwrap()
        .0
}

/// A marked merge of a shard's first `count` pending generations that hold no delete, prepared as Lance's own builder
/// does it: no sentinel.
pub async fn prepare_unfenced(
    dataset: &Arc<Dataset>,
    shard: Uuid,
    count: usize,
) -> UncommittedMergeInsert {
    let shards = pending(dataset).await;
    let generations = &shards.iter().find(|s| s.0 == shard).unwrap().1[..count];
    let keys: Vec<String> = dataset
        .schema()
        .unenforced_primary_key()
        .iter()
        .map(|f| f.name.clone())
        .collect();
    let mut newest = std::collections::BTreeMap::new();
    for of in generations {
        let (live, gone) = generation(dataset, shard, of).await;
        assert!(gone.is_none(), "only puts here");
        let at: Vec<usize> = keys
            .iter()
            .map(|k| live.schema().index_of(k).unwrap())
            .collect();
        let names = crate::fixtures::canonical(&live.project(&at).unwrap());
        for (row, name) in names.into_iter().enumerate() {
            newest.insert(name, live.slice(row, 1));
        }
    }
    let rows: Vec<RecordBatch> = newest.into_values().collect();
    let top = generations.last().unwrap().generation;
    let mut job = MergeInsertBuilder::try_new(dataset.clone(), vec![]).unwrap();
    job.when_matched(WhenMatched::UpdateAll)
        .when_not_matched(WhenNotMatched::InsertAll)
        .mark_sstables_as_compacted(vec![CompactedSsTable::new(shard, top)]);
    job.try_build()
        .unwrap()
        .execute_uncommitted_batches(rows)
        .await
        .unwrap()
}

/// Commits what [`prepare_unfenced`] prepared.
pub async fn commit_unfenced(
    dataset: &Arc<Dataset>,
    prepared: UncommittedMergeInsert,
) -> lance::Result<Dataset> {
    let mut commit = CommitBuilder::new(dataset.clone());
    if let Some(rows) = prepared.affected_rows {
        commit = commit.with_affected_rows(rows);
    }
    commit.execute(prepared.transaction).await
}
