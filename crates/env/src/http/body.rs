//! The body of an answer, as it arrives.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc;

use crate::call::Piece;

/// The body of an answer: off a connection, or of a call in the simulation.
pub struct Body(Source);

enum Source {
    Connection(Incoming),
    Call { pieces: mpsc::Receiver<Piece>, ended: bool },
}

impl Body {
    pub(crate) fn called(pieces: mpsc::Receiver<Piece>) -> Self {
        Self(Source::Call { pieces, ended: false })
    }
}

impl From<Incoming> for Body {
    fn from(body: Incoming) -> Self {
        Self(Source::Connection(body))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut self.0 {
            Source::Connection(body) => Pin::new(body).poll_frame(cx).map_err(io::Error::other),
            Source::Call { ended: true, .. } => Poll::Ready(None),
            Source::Call { pieces, ended } => pieces.poll_recv(cx).map(|piece| {
                *ended = !matches!(piece, Some(Some(_)));
                match piece {
                    Some(Some(bytes)) => Some(Ok(Frame::data(bytes))),
                    Some(None) => None,
                    None => Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the answer broke off"))),
                }
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Connection(body) => body.is_end_stream(),
            Source::Call { ended, .. } => *ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Connection(body) => body.size_hint(),
            Source::Call { .. } => SizeHint::default(),
        }
    }
}
