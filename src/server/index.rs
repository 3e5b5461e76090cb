//! A list of the experiments for a browser.
//!
//! Lives here: the one HTML answer, without script or style, and its escaping. May use: the catalog. Must never come in:
//! anything loaded from anywhere, or text that was not escaped.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse};
use jiff::Timestamp;
use url::form_urlencoded::byte_serialize;

use super::asked::Asked;
use super::catalog::ExperimentStatus;
use super::routes::Answer;
use super::serve::Shared;

const POLICY: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) async fn index(State(shared): State<Arc<Shared>>, asked: Asked) -> Answer {
    let seen = asked.experiments(&shared).await?;
    let mut response = Html(page(&seen)).into_response();
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::X_FRAME_OPTIONS, "DENY");
    Ok(response)
}

fn page(experiments: &[ExperimentStatus]) -> String {
    let mut out = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Freshet</title><h1>Freshet</h1>",
    );
    let now = Timestamp::now();
    out.push_str(
        "<table><caption>Experiments</caption><thead><tr><th scope=\"col\">Name<th scope=\"col\">Pending\
         <th scope=\"col\">Lag<th scope=\"col\">Why not now<th scope=\"col\">Records</thead><tbody>",
    );
    for e in experiments {
        let pending = e.pending_generations.map(|n| n.to_string());
        let lag = e.lag_seconds(now).map(|s| format!("{s:.1} s"));
        let why = e.why_not_now.as_ref();
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{}<td>{}<td>{}<td>{}<td>",
            escaped(&e.name),
            escaped(pending.as_deref().unwrap_or("unknown")),
            escaped(lag.as_deref().unwrap_or("unknown")),
            escaped(&why.map_or_else(String::new, |w| format!("{}: {}", w.reason, w.message))),
        );
        let name = byte_serialize(e.name.as_bytes())
            .collect::<String>()
            .replace('+', "%20");
        for source in ["fragments", "wal", "all"] {
            let _ = write!(
                out,
                "<a href=\"/api/v1/experiments/{name}/records?source={source}\">{source}</a> "
            );
        }
    }
    if experiments.is_empty() {
        out.push_str("<tr><td colspan=\"5\">none yet");
    }
    out.push_str("</tbody></table><p><a href=\"/metrics\">metrics</a>");
    out
}

fn escaped(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::catalog::WhyNotNow;
    use super::*;

    #[test]
    fn names_and_messages_are_text_and_never_markup() {
        let hostile = "\"><script>alert(1)</script>";
        let html = page(&[ExperimentStatus {
            name: hostile.into(),
            why_not_now: Some(WhyNotNow {
                reason: hostile.into(),
                message: "'&".into(),
            }),
            ..Default::default()
        }]);
        assert!(!html.contains("<script"), "{html}");
        assert!(html.contains("&#39;&amp;"));
        assert!(html.contains("unknown"));
    }
}
