//! Who is let in, and how the server ends.

use std::time::Duration;

use freshet::server::Config;
use freshet::table::StoresConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixtures::{Fixture, Spec};
use crate::served::{Served, Tables};

fn none() -> Tables {
    Tables::new(StoresConfig::default())
}

#[tokio::test]
async fn a_loopback_server_answers_to_its_own_names_only() {
    let served = Served::new(none()).await;
    let ask = |headers: String| {
        format!("GET /api/v1/experiments HTTP/1.1\r\n{headers}connection: close\r\n\r\n")
    };
    let own = format!("host: localhost:{}\r\n", served.address.port());
    assert_eq!(served.say(&ask(own.clone())).await.status, 200);
    let same = format!(
        "{own}origin: http://localhost:{}\r\n",
        served.address.port()
    );
    let answer = served.say(&ask(same)).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.head.contains("access-control"), "there is no CORS");
    assert!(answer.head.contains("x-content-type-options: nosniff"));
    let rebound = served.say(&ask("host: evil.example\r\n".into())).await;
    assert_eq!(
        (rebound.status, rebound.problem().as_str()),
        (403, "host-not-allowed")
    );
    let foreign = ask(format!("{own}origin: http://evil.example\r\n"));
    let foreign = served.say(&foreign).await;
    assert_eq!(
        (foreign.status, foreign.problem().as_str()),
        (403, "origin-not-allowed")
    );
    let metrics = "GET /metrics HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(served.say(metrics).await.status, 403);
}

#[tokio::test]
async fn only_reading_is_answered() {
    let served = Served::new(none()).await;
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"] {
        for path in ["/api/v1/experiments", "/", "/nothing"] {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
                served.address
            );
            let answer = served.say(&request).await;
            assert_eq!(answer.status, 405, "{method} {path} {answer:?}");
            assert!(answer.head.contains("allow: get, head"), "{answer:?}");
            answer.problem();
        }
    }
    assert_eq!(served.get("/nothing").await.problem(), "route-not-found");
    assert_eq!(served.get("/healthz").await.status, 200);
    assert_eq!(served.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn oversized_requests_are_refused() {
    let served = Served::new(none()).await;
    let long = format!("/api/v1/experiments?{}", "x".repeat(9 << 10));
    assert_eq!(served.get(&long).await.status, 414);
    let head = format!(
        "GET /healthz HTTP/1.1\r\nhost: {}\r\nx: {}\r\nconnection: close\r\n\r\n",
        served.address,
        "y".repeat(20 << 10)
    );
    assert_eq!(served.say(&head).await.status, 431);
    let body = format!(
        "GET /healthz HTTP/1.1\r\nhost: {}\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello",
        served.address
    );
    assert_eq!(served.say(&body).await.status, 413);
}

#[tokio::test]
async fn more_requests_than_are_answered_at_once_are_told_to_come_again() {
    let t = Fixture::create(Spec::default()).await;
    let config = Config {
        concurrent: 0,
        ..Default::default()
    };
    let served = Served::with(none().with_table("cartpole", &t.uri), config).await;
    let answer = served.records("cartpole", "").await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "busy"));
    assert!(answer.head.contains("retry-after: 1"), "{answer:?}");
    assert_eq!(
        served.get("/healthz").await.status,
        200,
        "health takes no permit"
    );
}

#[tokio::test]
async fn a_request_past_its_deadline_is_a_504() {
    let t = Fixture::create(Spec::default()).await;
    let config = Config {
        deadline: Duration::ZERO,
        ..Default::default()
    };
    let served = Served::with(none().with_table("cartpole", &t.uri), config).await;
    let answer = served.records("cartpole", "?source=all").await;
    assert_eq!(
        (answer.status, answer.problem().as_str()),
        (504, "deadline-exceeded")
    );
}

#[tokio::test]
async fn a_stopped_server_ends_its_connections_and_answers_no_more() {
    let served = Served::new(none()).await;
    let mut idle = TcpStream::connect(served.address).await.unwrap();
    let ask = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", served.address);
    idle.write_all(ask.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    served.stop.cancel();
    served.task.await.unwrap().unwrap();
    let mut rest = vec![];
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(TcpStream::connect(served.address).await.is_err());
}
