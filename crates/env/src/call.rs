//! Requests that reach a process without a connection: what the simulation puts in HTTP's place when
//! only the product's decisions are of interest.
//!
//! A [`Call`] lies in the queue of a listener as a connection does, is answered by the same service,
//! and breaks where a connection would: who asked sees a broken answer if the process that answers is
//! killed, and the service stops if who asked has left. A body passes piece by piece, and no faster
//! than it is taken.

use std::future::Future;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::response::Parts;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tokio::sync::{mpsc, oneshot};

use crate::http::Body;

/// Pieces of a body that nobody has taken yet, at most.
const PIECES_MAX: usize = 64;

/// Carries requests to processes of the same simulation.
pub trait Calls: Send + Sync {
    /// Asks whoever listens on the request's port. Sets no timeout of its own.
    ///
    /// Errors: `ConnectionRefused` if nobody listens there, otherwise the answer broke.
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'static, io::Result<Response<Body>>>;
}

/// A request that waits for its answer.
pub struct Call {
    /// What is asked.
    pub request: Request<Bytes>,
    reply: oneshot::Sender<Response<Body>>,
}

/// Where the answer to a call arrives.
pub struct Asked(oneshot::Receiver<Response<Body>>);

/// The body of an answer that has begun. Dropping it before [`Answer::end`] breaks it off.
pub struct Answer(mpsc::Sender<Piece>);

/// What arrives of a body; no bytes are its orderly end.
pub(crate) type Piece = Option<Bytes>;

impl Call {
    /// A call, and where its answer arrives.
    #[must_use]
    pub fn new(request: Request<Bytes>) -> (Self, Asked) {
        let (reply, asked) = oneshot::channel();
        (Self { request, reply }, Asked(asked))
    }

    /// Waits until who asked has left.
    pub async fn left(&mut self) {
        self.reply.closed().await;
    }

    /// Begins the answer; `None` if who asked has left.
    #[must_use]
    pub fn begin(self, head: Parts) -> Option<Answer> {
        let (pieces, body) = mpsc::channel(PIECES_MAX);
        let response = Response::from_parts(head, Body::called(body));
        self.reply.send(response).is_ok().then_some(Answer(pieces))
    }

    /// Answers it with a service, until the body has ended or who asked has left.
    pub async fn answer<F, B>(mut self, respond: impl FnOnce(Request<Bytes>) -> F)
    where
        F: Future<Output = Response<B>>,
        B: http_body::Body<Data = Bytes>,
    {
        let request = std::mem::take(&mut self.request);
        let response = tokio::select! {
            biased;
            () = self.left() => return,
            response = respond(request) => response,
        };
        let (head, body) = response.into_parts();
        let Some(answer) = self.begin(head) else { return };
        let mut body = pin!(body);
        loop {
            let frame = tokio::select! {
                biased;
                () = answer.left() => return,
                frame = body.frame() => frame,
            };
            match frame {
                Some(Ok(frame)) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    if answer.give(bytes).await.is_err() {
                        return;
                    }
                }
                // An answer that is dropped without its end is a broken one.
                Some(Err(_)) => return,
                None => return answer.end().await,
            }
        }
    }
}

impl Asked {
    /// Waits for the head of the answer.
    ///
    /// # Errors
    /// If whoever was asked is gone.
    pub async fn head(self) -> io::Result<Response<Body>> {
        self.0.await.map_err(|_| io::ErrorKind::ConnectionReset.into())
    }
}

impl Answer {
    /// Gives a piece of the body, when there is room for it.
    ///
    /// # Errors
    /// If who asked has left.
    pub async fn give(&self, bytes: Bytes) -> io::Result<()> {
        self.0.send(Some(bytes)).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Ends the body as it should end.
    pub async fn end(self) {
        // Who has left needs no end.
        let _ = self.0.send(None).await;
    }

    /// Waits until who asked has left.
    pub async fn left(&self) {
        self.0.closed().await;
    }
}
