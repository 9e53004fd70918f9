//! The engines by name: which works here, and which is the best that does.

use crate::folder::ENGINE_FOLDER;
use crate::name::{EngineChoice, EngineName};
use canopy_batch::{SendBatch, Unsent};
use canopy_net::{Mmsg, SendEngine, Sendto, Sent, Socket};
use std::io;
use std::path::Path;

#[cfg(feature = "kernel")]
use crate::{
    clone::{Cloner, SMALLEST_SET},
    uring::Uring,
};

/// The engine that was chosen.
pub struct Engine {
    name: EngineName,
    why: String,
    inner: Box<dyn SendEngine + Send>,
}

/// An engine that does not work here, and what would make it.
#[derive(Debug, thiserror::Error)]
#[error("the send engine {engine} does not work here: {reason}")]
pub struct EngineUnavailable {
    /// Which.
    pub engine: EngineName,
    /// Why not, and the remedy.
    pub reason: String,
}

impl Engine {
    /// Opens the chosen engine for what `socket` sends, or with [`EngineChoice::Auto`] the
    /// cheapest that works. From now on the socket is told of a device queue that is full, where
    /// the kernel would say that it sent and drop the datagram.
    ///
    /// # Errors
    /// If the engine was named and does not work here.
    pub fn open(choice: EngineChoice, socket: &Socket) -> Result<Engine, EngineUnavailable> {
        Engine::open_in(Path::new(ENGINE_FOLDER), choice, socket)
    }

    /// [`Engine::open`] with the folder in which clone engines were installed.
    ///
    /// # Errors
    /// If the engine was named and does not work here.
    pub fn open_in(
        folder: &Path,
        choice: EngineChoice,
        socket: &Socket,
    ) -> Result<Engine, EngineUnavailable> {
        socket.report_errors();
        match choice {
            EngineChoice::Named(name) => {
                let inner = open(name, socket, folder)?;
                Ok(Engine { name, why: "asked for".to_owned(), inner })
            }
            EngineChoice::Auto => Ok(Engine::best(|name| open(name, socket, folder))),
        }
    }

    /// Opens the cheapest engine that works for what `socket` sends, where no two receivers get the
    /// same bytes: none that clones them.
    pub fn open_without_clones(socket: &Socket) -> Engine {
        socket.report_errors();
        Engine::best(|name| {
            if name.clones() {
                let reason = "no two receivers get the same bytes; choose downlink group or none";
                return Err(EngineUnavailable { engine: name, reason: reason.to_owned() });
            }
            open(name, socket, Path::new(ENGINE_FOLDER))
        })
    }

    fn best(
        open: impl Fn(EngineName) -> Result<Box<dyn SendEngine + Send>, EngineUnavailable>,
    ) -> Engine {
        let mut passed_over = Vec::new();
        for name in EngineName::BEST_FIRST {
            match open(name) {
                Ok(inner) => {
                    let why = if passed_over.is_empty() {
                        "the cheapest there is".to_owned()
                    } else {
                        format!("the cheapest that works here; {}", passed_over.join("; "))
                    };
                    return Engine { name, why, inner };
                }
                Err(EngineUnavailable { engine, reason }) => {
                    passed_over.push(format!("{engine}: {reason}"));
                }
            }
        }
        let inner = Box::new(Sendto::new());
        Engine { name: EngineName::Sendto, why: passed_over.join("; "), inner }
    }

    /// Which it is.
    pub fn name(&self) -> EngineName {
        self.name
    }

    /// From how many receivers on it pays to send all of them the same bytes. None if it never does.
    pub fn smallest_set(&self) -> Option<u32> {
        smallest_set(self.name)
    }

    /// Why it was chosen.
    pub fn why(&self) -> &str {
        &self.why
    }
}

fn open(
    engine: EngineName,
    socket: &Socket,
    folder: &Path,
) -> Result<Box<dyn SendEngine + Send>, EngineUnavailable> {
    let unavailable = |error: io::Error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EMFILE) => "; raise the limit of open files (ulimit -n)",
            _ => "",
        };
        EngineUnavailable { engine, reason: format!("{error}{remedy}") }
    };
    Ok(match engine {
        EngineName::Sendto => Box::new(Sendto::new()),
        EngineName::Sendmmsg => Box::new(Mmsg::plain()),
        EngineName::Gso => Box::new(Mmsg::with_segments(socket).map_err(unavailable)?),
        EngineName::Uring | EngineName::TcBpf | EngineName::Xdp => {
            open_of_kernel(engine, socket, folder).map_err(unavailable)?
        }
    })
}

#[cfg(feature = "kernel")]
fn open_of_kernel(
    engine: EngineName,
    socket: &Socket,
    folder: &Path,
) -> io::Result<Box<dyn SendEngine + Send>> {
    Ok(match engine {
        EngineName::Uring => Box::new(Uring::new(socket)?),
        _ => Box::new(Cloner::open(engine, socket, folder)?),
    })
}

#[cfg(not(feature = "kernel"))]
fn open_of_kernel(_: EngineName, _: &Socket, _: &Path) -> io::Result<Box<dyn SendEngine + Send>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, crate::without::REASON))
}

#[cfg(feature = "kernel")]
fn smallest_set(engine: EngineName) -> Option<u32> {
    engine.clones().then_some(SMALLEST_SET as u32)
}

#[cfg(not(feature = "kernel"))]
fn smallest_set(_: EngineName) -> Option<u32> {
    None
}

impl SendEngine for Engine {
    fn send(&mut self, socket: &Socket, batch: &SendBatch, rest: &mut Vec<Unsent>) -> Sent {
        self.inner.send(socket, batch, rest)
    }

    fn has_stopped(&self) -> bool {
        self.inner.has_stopped()
    }
}

#[cfg(all(test, not(feature = "kernel")))]
mod tests {
    use super::*;
    use canopy_net::SocketOptions;

    #[test]
    fn what_was_not_built_is_refused_with_the_remedy_and_done_without() {
        let any = "127.0.0.1:0".parse().unwrap();
        let socket = Socket::bind(any, &SocketOptions::default()).unwrap();
        for name in [EngineName::Uring, EngineName::TcBpf, EngineName::Xdp] {
            let refused = Engine::open(EngineChoice::Named(name), &socket);
            let said = refused.err().expect("it was not built").to_string();
            assert!(said.contains(name.name()) && said.contains("`kernel`"), "{said}");
        }
        let engine = Engine::open(EngineChoice::Auto, &socket).unwrap();
        assert!(matches!(engine.name(), EngineName::Gso | EngineName::Sendmmsg));
        assert_eq!(engine.smallest_set(), None);
        let without = Engine::open_without_clones(&socket);
        assert_eq!(without.name(), engine.name());
        assert!(without.why().contains("tc-bpf: no two receivers get the same bytes"));
    }
}
