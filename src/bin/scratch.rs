use freshet::table::*;
use std::time::Duration;
#[tokio::main]
async fn main() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .init();
    let uri = std::env::args().nth(1).unwrap();
    let max: usize = std::env::args()
        .nth(2)
        .and_then(|s| s.parse().ok())
        .unwrap_or(64);
    let budget: u64 = std::env::args()
        .nth(3)
        .and_then(|s| s.parse().ok())
        .unwrap_or(256 << 20);
    if let Err(e) = run(&uri, max, budget).await {
        println!("{}: {e}", e.reason());
        std::process::exit(7);
    }
}
async fn run(uri: &str, max: usize, budget: u64) -> Result<()> {
    let stores = Stores::new(StoresConfig::default());
    let table = Table::open(&stores, &Location::new(uri)).await?;
    table.require_mem_wal().await?;
    let mut tracker = Tracker::new();
    let t0 = std::time::Instant::now();
    let mut bad = std::collections::BTreeSet::new();
    loop {
        let (o, s) = tracker.observe(&table).await?;
        for a in &o.anomalies {
            eprintln!("{}: {}", a.kind.reason(), a.message);
        }
        let mut left = max;
        let mut through = vec![];
        for sh in &o.shards {
            if left == 0 {
                break;
            }
            if o.blocked(sh.shard).is_some() || bad.contains(&sh.shard) {
                continue;
            }
            let n = sh.pending.len().min(left);
            if n > 0 {
                left -= n;
                through.push((sh.shard, sh.pending[n - 1].generation.number));
            }
        }
        if through.is_empty() {
            break;
        }
        let chunk = s.chunk(&through)?;
        match table
            .merge(
                &s,
                &chunk,
                &tracker.known(),
                &Limits::new(budget, Duration::from_secs(600)),
            )
            .await
        {
            Ok(Outcome::Merged(m)) => println!("{m:?}"),
            Ok(o) => println!("{o:?}"),
            Err(e) => {
                if let Some((shard, g)) = e.poisoned() {
                    println!("poisoned {shard} {g} {e}");
                    bad.insert(shard);
                } else {
                    return Err(e);
                }
            }
        }
    }
    println!("{:?}", t0.elapsed());
    if std::env::var("DRAIN").is_ok() {
        let (o, _) = tracker.observe(&table).await?;
        for s in o.shards {
            println!(
                "{:?}",
                table.drain(s.shard, u64::MAX).await?.generations.len()
            );
        }
    }
    Ok(())
}
