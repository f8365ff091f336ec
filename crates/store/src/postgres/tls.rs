//! TLS to the database, with rustls.
//!
//! `require` encrypts and believes any certificate, as PostgreSQL's own clients do; `verify-full`
//! also checks who answers, against the roots of `sslrootcert` or those of the web.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_core::{Code, Error};
use evenkeel_env::Stream;
use futures_util::future::BoxFuture;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as RustlsStream;

use super::fault::refused;

/// What `sslmode` asks for beyond encryption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Any certificate.
    Any,
    /// One of these roots (of the web if `None`), for the name of the host.
    Roots(Option<String>),
}

/// The client's side of TLS for one trust.
pub(super) fn config(trust: &Trust) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.to_string()))?;
    Ok(Arc::new(match trust {
        Trust::Any => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth(),
        Trust::Roots(file) => builder.with_root_certificates(roots(file.as_deref())?).with_no_client_auth(),
    }))
}

fn roots(file: Option<&str>) -> Result<RootCertStore, Error> {
    let Some(file) = file else {
        return Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() });
    };
    let mut store = RootCertStore::empty();
    let read = CertificateDer::pem_file_iter(file).map_err(|error| unusable(format!("{file}: {error}")))?;
    for certificate in read {
        let certificate = certificate.map_err(|error| unusable(format!("{file}: {error}")))?;
        store.add(certificate).map_err(|error| unusable(format!("{file}: {error}")))?;
    }
    if store.is_empty() {
        return Err(unusable(format!("{file} holds no certificate")));
    }
    Ok(store)
}

fn unusable(what: String) -> Error {
    refused(
        Code::StoreTls,
        format!("TLS to the database cannot be set up: {what}."),
        "Set sslrootcert in the URL to a PEM file with the certificate of the database's authority.",
    )
}

/// Believes any certificate, but not a broken signature.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Secures one connection to a host.
pub(super) struct Secure {
    pub(super) config: Arc<ClientConfig>,
    pub(super) host: String,
}

impl TlsConnect<Raw> for Secure {
    type Stream = Secured;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, std::io::Result<Secured>>;

    fn connect(self, stream: Raw) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host).map_err(std::io::Error::other)?;
            TlsConnector::from(self.config)
                .connect(name, stream)
                .await
                .map(|stream| Secured(Box::new(stream)))
        })
    }
}

/// A secured connection.
pub(super) struct Secured(Box<RustlsStream<Raw>>);

/// A connection of the injected network under a name of its own: the driver asks for one type.
pub(super) struct Raw(pub(super) Box<dyn Stream>);

impl TlsStream for Secured {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// Reading and writing are those of the stream inside.
macro_rules! pass_on {
    ($name:ident) => {
        impl AsyncRead for $name {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<std::io::Result<()>> {
                Pin::new(&mut self.0).poll_read(cx, buf)
            }
        }

        impl AsyncWrite for $name {
            fn poll_write(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<std::io::Result<usize>> {
                Pin::new(&mut self.0).poll_write(cx, buf)
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
                Pin::new(&mut self.0).poll_flush(cx)
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
                Pin::new(&mut self.0).poll_shutdown(cx)
            }
        }
    };
}

pass_on!(Raw);
pass_on!(Secured);
