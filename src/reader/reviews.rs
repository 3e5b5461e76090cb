//! The two questions that the API server answers: who a token is, and what somebody may.
//!
//! Lives here: `Reviews`, the trait of them, and `ClusterReviews`, which asks a real API server. May use: kube. Must never
//! come in: an answer for one that did not come, or a token in a message.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use tokio::time::timeout;

use super::token::Token;
use crate::cluster::Cluster;
use crate::cluster::client::code;
use crate::server::{Identity, Sight};

/// How long a review may take: a caller waits for it.
const WITHIN: Duration = Duration::from_secs(5);

/// That nobody answered, or not what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away;

/// Who knows.
#[async_trait]
pub trait Reviews: Send + Sync + 'static {
    /// Who a token is, for an audience; `None` where it is nobody's there.
    async fn who(&self, token: &Token, audience: &str) -> Result<Option<Identity>, Away>;

    /// Whether somebody may see something.
    async fn may(&self, who: &Identity, what: Sight<'_>) -> Result<bool, Away>;
}

/// Asks the API server.
pub struct ClusterReviews(pub Cluster);

#[async_trait]
impl Reviews for ClusterReviews {
    async fn who(&self, token: &Token, audience: &str) -> Result<Option<Identity>, Away> {
        let api: Api<TokenReview> = Api::all(self.0.client().clone());
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.text().to_owned(),
                audiences: Some(vec![audience.to_owned()]),
            },
            ..Default::default()
        };
        let status = create(&api, &review).await?.status.ok_or(Away)?;
        // An authenticator that knows no audiences names none: then the token is for the API server, and not for us.
        let ours = status.audiences.iter().flatten().any(|a| a == audience);
        if status.authenticated != Some(true) || !ours {
            return Ok(None);
        }
        let Some(user) = status.user else {
            return Ok(None);
        };
        let named = user.username.filter(|name| !name.is_empty());
        Ok(named.map(|name| Identity {
            user: name,
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.into_iter().flatten().collect(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    async fn may(&self, who: &Identity, what: Sight<'_>) -> Result<bool, Away> {
        let api: Api<SubjectAccessReview> = Api::all(self.0.client().clone());
        let (verb, namespace, name) = match what {
            Sight::List(namespace) => ("list", namespace, None),
            Sight::Records { namespace, name } => ("get", Some(namespace), Some(name)),
        };
        let text = |s: &str| s.to_owned();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(who.user.clone()),
                uid: Some(who.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(who.groups.iter().cloned().collect()),
                extra: Some(who.extra.clone()).filter(|e| !e.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    group: Some("freshet.dev".into()),
                    resource: Some("experiments".into()),
                    subresource: Some("data".into()),
                    verb: Some(verb.into()),
                    namespace: namespace.map(text),
                    name: name.map(text),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let status = create(&api, &review).await?.status.ok_or(Away)?;
        Ok(status.allowed && status.denied != Some(true))
    }
}

async fn create<K>(api: &Api<K>, review: &K) -> Result<K, Away>
where
    K: kube::Resource + Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    match timeout(WITHIN, api.create(&PostParams::default(), review)).await {
        Ok(Ok(answered)) => Ok(answered),
        Ok(Err(e)) => {
            // What the client says of an answer may hold what was sent.
            tracing::debug!(code = code(&e), "the API server did not answer a review");
            Err(Away)
        }
        Err(_) => Err(Away),
    }
}
