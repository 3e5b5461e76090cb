//! What a store may be told, and what nobody may tell it.

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn table(uri: &str, storage: StorageSpec) -> TableSpec {
    TableSpec {
        uri: uri.into(),
        storage: Some(storage),
        ..Default::default()
    }
}

fn endpoint(url: &str) -> StorageSpec {
    StorageSpec {
        endpoint: Some(url.into()),
        ..Default::default()
    }
}

const SERVICE_ACCOUNT: &str =
    r#"{"type":"service_account","private_key":"k","private_key_id":"i","client_email":"e"}"#;

#[test]
fn typed_fields_become_the_options_of_their_store() {
    let all = StorageSpec {
        endpoint: Some("http://minio:9000".into()),
        region: Some("eu-west-1".into()),
        account: None,
        virtual_hosted_style: Some(false),
        allow_http: Some(true),
    };
    for (table, expected) in [
        (
            table("s3://bkt/p", all.clone()),
            map(&[
                ("aws_endpoint", "http://minio:9000"),
                ("aws_region", "eu-west-1"),
                ("aws_virtual_hosted_style_request", "false"),
                ("allow_http", "true"),
            ]),
        ),
        (
            table(
                "s3://bkt/p",
                StorageSpec {
                    virtual_hosted_style: Some(true),
                    ..endpoint("https://minio:9000")
                },
            ),
            map(&[
                ("aws_endpoint", "https://bkt.minio:9000"),
                ("aws_virtual_hosted_style_request", "true"),
            ]),
        ),
        (
            table(
                "s3://bkt/p",
                StorageSpec {
                    virtual_hosted_style: Some(true),
                    ..endpoint("https://bkt.minio")
                },
            ),
            map(&[
                ("aws_endpoint", "https://bkt.minio"),
                ("aws_virtual_hosted_style_request", "true"),
            ]),
        ),
        (
            table(
                "az://c/p",
                StorageSpec {
                    account: Some("acct".into()),
                    ..endpoint("https://azurite")
                },
            ),
            map(&[
                ("azure_storage_account_name", "acct"),
                ("azure_storage_endpoint", "https://azurite"),
            ]),
        ),
        (
            table("gs://bkt/p", endpoint("https://gcs")),
            map(&[("google_base_url", "https://gcs")]),
        ),
        (table("/data/t", all), map(&[])),
        (
            TableSpec {
                uri: "s3://bkt/p".into(),
                ..Default::default()
            },
            map(&[]),
        ),
    ] {
        assert_eq!(options(&table), expected, "{table:?}");
    }
}

#[test]
fn credentials_are_read_in_every_spelling_and_given_to_the_store_in_one() {
    for (key, _, others) in CREDENTIALS {
        let value = if key == "google_service_account_key" {
            SERVICE_ACCOUNT
        } else {
            "v4lue"
        };
        for spelling in others.iter().copied().chain([key, &key.to_uppercase()]) {
            assert_eq!(
                credential_options(map(&[(spelling, value)])),
                Ok(map(&[(key, value)])),
                "{spelling}"
            );
        }
    }
    assert_eq!(
        credential_options(map(&[("sas_token", "v\r\n")])),
        Ok(map(&[("azure_storage_sas_key", "v")]))
    );
}

#[test]
fn whatever_is_no_credential_is_refused_by_name_with_the_keys_that_are_allowed() {
    for key in [
        "aws_web_identity_token_file",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "aws_container_authorization_token_file",
        "aws_metadata_endpoint",
        "aws_endpoint_url_sts",
        "aws_role_arn",
        "aws_profile",
        "aws_skip_signature",
        "aws_endpoint",
        "aws_region",
        "azure_federated_token_file",
        "azure_storage_authority_host",
        "azure_storage_authority_id",
        "azure_msi_endpoint",
        "azure_use_azure_cli",
        "azure_storage_token",
        "azure_storage_use_emulator",
        "google_application_credentials",
        "google_service_account",
        "google_service_account_path",
        "google_base_url",
        "google_bearer_token",
        "proxy_url",
        "proxy_ca_certificate",
        "allow_http",
        "allow_invalid_certificates",
        "use_opendal",
        "headers.authorization",
        "token",
        "",
        "ключ",
        "aws_access_key_id ",
        "aws_copy_if_not_exists",
        "aws_conditional_put",
    ] {
        let error = credential_options(map(&[(key, "marker")])).expect_err(key);
        let text = error.to_string();
        assert!(text.contains(&format!("{key:?}")), "{text}");
        assert!(
            allowed_keys().all(|allowed| text.contains(allowed)),
            "{text}"
        );
        assert!(!text.contains("marker"), "{text}");
    }
    let text = credential_options(map(&[("aws_region", "eu")]))
        .unwrap_err()
        .to_string();
    assert!(text.contains("spec.table.storage.region"), "{text}");
    let long = credential_options(map(&[(&"x".repeat(1_000_000), "")])).unwrap_err();
    assert!(long.to_string().len() < 1_000);
}

#[test]
fn a_value_that_cannot_be_a_credential_is_refused_without_being_shown() {
    for (key, value) in [
        ("aws_access_key_id", ""),
        ("aws_access_key_id", "\n"),
        ("aws_secret_access_key", "marker marker"),
        ("aws_secret_access_key", "marker\nHost: evil"),
        ("azure_storage_tenant_id", "marker/../x"),
        ("azure_storage_tenant_id", "marker?x"),
        ("google_service_account_key", "/var/run/secrets/marker"),
        (
            "google_service_account_key",
            r#"{"type":"external_account","marker":1}"#,
        ),
        ("google_service_account_key", r#"{"private_key":"marker"}"#),
        (
            "google_service_account_key",
            r#"{"private_key":"k","private_key_id":"i","client_email":"e","gcs_base_url":"https://marker"}"#,
        ),
    ] {
        let error = credential_options(map(&[(key, value)])).expect_err(value);
        assert!(
            error.to_string().contains(key) && !error.to_string().contains("marker"),
            "{error}"
        );
    }
    let giant = "x".repeat(LONGEST_VALUE + 1);
    assert!(credential_options(map(&[("aws_access_key_id", &giant)])).is_err());
}

#[test]
fn one_credential_in_two_spellings_is_refused() {
    let twice = map(&[("AWS_ACCESS_KEY_ID", "a"), ("aws_access_key_id", "b")]);
    assert_eq!(
        credential_options(twice),
        Err(Error::GivenTwice {
            key: "aws_access_key_id"
        })
    );
}

#[test]
fn credentials_that_do_not_open_the_table_are_refused_rather_than_replaced_by_ambient_ones() {
    let s3 = map(&[("aws_access_key_id", "a"), ("aws_secret_access_key", "b")]);
    let sas = map(&[("sas_token", "a")]);
    let triple = map(&[
        ("client_id", "a"),
        ("client_secret", "b"),
        ("tenant_id", "c"),
    ]);
    for (uri, secret, fits) in [
        ("s3://bkt/p", s3.clone(), true),
        ("s3://bkt/p", map(&[("aws_access_key_id", "a")]), false),
        ("s3://bkt/p", map(&[]), false),
        ("s3://bkt/p", sas.clone(), false),
        ("az://c/p", sas.clone(), true),
        ("abfss://c@acct.dfs.core.windows.net/p", triple, true),
        (
            "az://c/p",
            map(&[("client_id", "a"), ("client_secret", "b")]),
            false,
        ),
        (
            "gs://bkt/p",
            map(&[("google_service_account_key", SERVICE_ACCOUNT)]),
            true,
        ),
        ("gs://bkt/p", s3.clone(), false),
        ("/data/t", map(&[]), true),
        ("/data/t", s3.clone(), false),
        ("s3://bkt/p", s3.into_iter().chain(sas).collect(), false),
    ] {
        let table = TableSpec {
            uri: uri.into(),
            ..Default::default()
        };
        assert_eq!(
            credentials_for(&table, secret.clone()).is_ok(),
            fits,
            "{uri} {:?}",
            secret.keys()
        );
    }
}

#[test]
fn a_command_line_gives_typed_fields_and_credentials_and_nothing_else() {
    let (table, credentials) = from_cli(
        "s3://bkt/p",
        [
            "aws_endpoint=http://minio:9000",
            "REGION=eu-west-1",
            "allow_http=True",
            "aws_access_key_id=a=b",
        ],
    )
    .unwrap();
    let storage = table.storage.unwrap();
    assert_eq!(storage.endpoint.as_deref(), Some("http://minio:9000"));
    assert_eq!(storage.region.as_deref(), Some("eu-west-1"));
    assert_eq!(storage.allow_http, Some(true));
    assert_eq!(credentials, map(&[("aws_access_key_id", "a=b")]));
    assert_eq!(from_cli("s3://bkt/p", [""; 0]).unwrap().0.storage, None);
    for (bad, reason) in [
        ("marker", "StorageOptionInvalid"),
        ("=marker", "StorageOptionRefused"),
        ("proxy_url=marker", "StorageOptionRefused"),
        ("aws_web_identity_token_file=marker", "StorageOptionRefused"),
        ("allow_http=marker", "StorageOptionInvalid"),
        ("region=", "StorageOptionInvalid"),
        ("aws_access_key_id=", "StorageOptionInvalid"),
    ] {
        let error = from_cli("s3://bkt/p", [bad]).expect_err(bad);
        assert_eq!(error.reason(), reason, "{bad}");
        assert!(!error.to_string().contains("marker"), "{error}");
    }
    assert!(from_cli("s3://bkt/p", ["region=a", "aws_region=b"]).is_err());
}

#[test]
fn a_command_lines_option_does_not_show_its_value_in_debug_form() {
    let option = parse_cli_option("aws_secret_access_key=marker").unwrap();
    assert_eq!(
        format!("{option:?}"),
        r#"Credential("aws_secret_access_key")"#
    );
    let option = parse_cli_option("endpoint=https://u:marker@h").unwrap();
    assert_eq!(format!("{option:?}"), "Typed(Endpoint)");
}
