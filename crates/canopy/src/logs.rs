//! Logs on stderr.

use crate::output::LogOutput;
use anyhow::bail;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// How logs look.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl LogFormat {
    /// Starts logging to stderr; `CANOPY_LOG` filters it, like `info` or `canopy=debug`.
    pub(crate) fn start(self) -> anyhow::Result<()> {
        self.start_at("info")
    }

    /// The same with another filter where `CANOPY_LOG` is not set.
    pub(crate) fn start_at(self, default: &str) -> anyhow::Result<()> {
        let filter = match std::env::var("CANOPY_LOG") {
            Ok(text) if !text.is_empty() => parse_filter(&text)?,
            _ => EnvFilter::new(default),
        };
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let logs = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(std::io::stderr().is_terminal() && !is_plain)
            .with_writer(|| LogOutput);
        match self {
            LogFormat::Text => logs.init(),
            LogFormat::Json => logs.json().init(),
        }
        Ok(())
    }
}

/// What `CANOPY_LOG` says, if it can mean something: a misspelt level would be taken for the name
/// of a module, and silence everything else.
fn parse_filter(text: &str) -> anyhow::Result<EnvFilter> {
    const REMEDY: &str = "give a level (error, warn, info, debug, trace or off), or a module and \
                          its level, like canopy=debug";
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    for word in words.filter(|word| !word.contains(['=', '['])) {
        let is_module = word.starts_with("canopy") || word.contains("::");
        if !is_module && word.parse::<LevelFilter>().is_err() {
            bail!("CANOPY_LOG: {word:?} is no level; {REMEDY}");
        }
    }
    EnvFilter::builder()
        .parse(text)
        .map_err(|_| anyhow::anyhow!("CANOPY_LOG: {text:?} cannot be understood; {REMEDY}"))
}
