//! `canopy token`: keys that sign access tokens, and the tokens.

use crate::output::{print_line, print_note};
use crate::trust;
use anyhow::{Context, anyhow, bail};
use canopy_client::ClientKey;
use canopy_relay::Trust;
use canopy_token::{
    Budget, Claims, ComtreeGrant, Delegation, Grant, GroupRange, KeySet, PublicKey, Revocations,
    Role, Scope, SigningKey, Unicast, UnixTime, parse_client_key,
};
use canopy_wire::{Address, Comtree, Level};
use clap::{Args, Subcommand};
use serde_json::json;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Access tokens say who may enter a world and what they may do there. A backend issues them with a
/// signing key, in any language (docs/tokens.md); these commands are for trying, and for scripts.
#[derive(Args)]
#[command(after_help = "For example:\n  \
    canopy token key --out lobby.key\n                                  \
    a new signing key; prints its public key\n  \
    canopy token issue --key lobby.key --world lobby --subject player-17 \\\n      \
    --client-key KEY --publish 0-4095 --subscribe 0-4095\n                                  \
    an hour in the lobby\n  \
    canopy token inspect TOKEN --trust k4.public.…\n                                  \
    what it says, and whether it would be taken\n  \
    canopy token revoke TOKEN --trust-file trust.toml\n                                  \
    ends its session at the relays that read the file")]
pub(crate) struct TokenCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Make a signing key
    Key(KeyCommand),
    /// Issue a token
    Issue(Box<IssueCommand>),
    /// Let another key sign tokens, up to a ceiling
    Delegate(Box<DelegateCommand>),
    /// Show what a token says and whether it would be taken
    Inspect(InspectCommand),
    /// Take back a token: relays end its session within a second
    Revoke(RevokeCommand),
    /// Make a client's key; a token names the public key that belongs to it
    ClientKey(KeyCommand),
}

#[derive(Args)]
struct KeyCommand {
    /// The file for the secret, which must not exist yet; only its owner may read it
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print the public key as JSON
    #[arg(long)]
    json: bool,
}

/// What is granted.
#[derive(Args)]
struct GrantArgs {
    /// The world's name
    #[arg(long, value_name = "NAME")]
    world: String,
    /// The comtree
    #[arg(long, value_name = "N", default_value_t = 1)]
    comtree: u32,
    /// Groups to publish to, such as 0-4095,9000
    #[arg(long, value_name = "RANGES", value_delimiter = ',')]
    publish: Vec<GroupRange>,
    /// The highest level to publish at
    #[arg(long, value_name = "LEVEL", default_value_t = 0)]
    publish_level: u8,
    /// Groups to subscribe to
    #[arg(long, value_name = "RANGES", value_delimiter = ',')]
    subscribe: Vec<GroupRange>,
    /// The highest level to subscribe at
    #[arg(long, value_name = "LEVEL", default_value_t = 0)]
    subscribe_level: u8,
    /// To whom unicast may be sent: nobody, any, or one address such as 1.64
    #[arg(long, value_name = "WHOM", default_value_t = Unicast::Nobody)]
    to: Unicast,
    /// The one address that the bearer gets [default: any that is free]
    #[arg(long, value_name = "ADDRESS", value_parser = one_address)]
    address: Option<Address>,
    /// The one site whose relays let the bearer in [default: those of all sites]
    #[arg(long, value_name = "SITE", value_parser = clap::value_parser!(u16).range(0..=0x7fff))]
    site: Option<u16>,
    /// Bits a second that may be sent
    #[arg(long, value_name = "N")]
    up_bits: Option<u64>,
    /// Packets a second that may be sent
    #[arg(long, value_name = "N")]
    up_packets: Option<u64>,
    /// Bits a second that may be received
    #[arg(long, value_name = "N")]
    down_bits: Option<u64>,
    /// Packets a second that may be received
    #[arg(long, value_name = "N")]
    down_packets: Option<u64>,
    /// The bearer may restrict, mute and throw out members
    #[arg(long)]
    server: bool,
}

#[derive(Args)]
struct IssueCommand {
    /// The file of the signing key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    #[command(flatten)]
    grant: GrantArgs,
    /// For whom it is, as logs shall name them
    #[arg(long, value_name = "NAME")]
    subject: String,
    /// The client's public key (X25519, base64url): whoever uses the token must have its secret
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    client_key: String,
    /// How long it is good for
    #[arg(long, value_name = "N", default_value_t = 60)]
    minutes: u32,
    /// Print it as JSON, with its identifier and its end
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct DelegateCommand {
    /// The file of the signing key that relays trust
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The public key that may sign from now on
    #[arg(long, value_name = "KEY")]
    to_key: String,
    #[command(flatten)]
    ceiling: GrantArgs,
    /// How long it may sign, days
    #[arg(long, value_name = "N", default_value_t = 30)]
    days: u32,
    /// How long its tokens may be good for, minutes
    #[arg(long, value_name = "N", default_value_t = 60)]
    minutes: u32,
}

#[derive(Args)]
struct InspectCommand {
    /// The token; - reads it from standard input
    #[arg(value_name = "TOKEN")]
    token: String,
    /// A public key that is trusted, k4.public.…; may be given several times
    #[arg(long, value_name = "KEY", conflicts_with = "trust_file")]
    trust: Vec<String>,
    /// The trust file of a relay
    #[arg(long, value_name = "FILE", conflicts_with = "delegation")]
    trust_file: Option<PathBuf>,
    /// A delegation of one of them; may be given several times
    #[arg(long, value_name = "DELEGATION")]
    delegation: Vec<String>,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RevokeCommand {
    /// The token; - reads it from standard input
    #[arg(value_name = "TOKEN", required_unless_present = "id")]
    token: Option<String>,
    /// The token's identifier (jti), where the token itself is not at hand
    #[arg(
        long,
        value_name = "ID",
        conflicts_with = "token",
        requires = "expires",
        allow_hyphen_values = true
    )]
    id: Option<String>,
    /// When that token ends, like 2026-11-21T20:00:00Z; until then it is kept in the file
    #[arg(long, value_name = "TIME", requires = "id")]
    expires: Option<UnixTime>,
    /// The trust file that relays read
    #[arg(long, value_name = "FILE")]
    trust_file: PathBuf,
    /// Print the identifier and the end as JSON
    #[arg(long)]
    json: bool,
}

impl TokenCommand {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            What::Key(command) => command.run(),
            What::Issue(command) => command.run(),
            What::Delegate(command) => command.run(),
            What::Inspect(command) => command.run(),
            What::Revoke(command) => command.run(),
            What::ClientKey(command) => command.run_for_client(),
        }
    }
}

impl KeyCommand {
    fn run(self) -> anyhow::Result<ExitCode> {
        let key = SigningKey::from_seed(random()?);
        self.write(&key.to_secret_text())?;
        let (public, id) = (key.public().to_string(), key.public().id().to_string());
        if self.json {
            print_line(json!({ "public": public, "id": id }))?;
        } else {
            print_line(public)?;
            print_note(format_args!("relays trust it by this text; its name is {id}"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl KeyCommand {
    fn run_for_client(self) -> anyhow::Result<ExitCode> {
        let key = ClientKey::from_seed(random()?);
        self.write(&key.to_secret_text())?;
        if self.json {
            print_line(json!({ "public": key.public() }))?;
        } else {
            print_line(key.public())?;
            print_note("a token is issued for it with --client-key");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn write(&self, secret: &str) -> anyhow::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&self.out);
        let told = || format!("--out {}: cannot write the key", self.out.display());
        writeln!(file.with_context(told)?, "{secret}").with_context(told)
    }
}

impl RevokeCommand {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (id, expires) = match (self.token, self.id, self.expires) {
            (Some(token), ..) => {
                let said = Claims::read_unverified(&given(token)?);
                let said = said.map_err(|error| anyhow!("TOKEN: {error}"))?;
                (said.id, said.expires)
            }
            (None, Some(id), Some(expires)) => (id, expires),
            _ => bail!("give the token, or --id and --expires"),
        };
        let is_new = trust::revoke(&self.trust_file, &id, expires)?;
        if self.json {
            print_line(json!({ "id": id, "expires": expires, "new": is_new }))?;
        } else if is_new {
            print_note(format_args!("{id} is taken no more, at the relays that read this file"));
        } else {
            print_note(format_args!("{id} was revoked already"));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl GrantArgs {
    fn grant(self) -> Grant {
        let scope = |groups, level| Scope { groups, level: Level(level) };
        Grant {
            world: self.world,
            address: self.address,
            site: self.site,
            comtrees: vec![ComtreeGrant {
                comtree: Comtree(self.comtree),
                publish: scope(self.publish, self.publish_level),
                subscribe: scope(self.subscribe, self.subscribe_level),
                unicast: self.to,
            }],
            budget: Budget {
                up_bits: self.up_bits,
                up_packets: self.up_packets,
                down_bits: self.down_bits,
                down_packets: self.down_packets,
            },
            roles: if self.server { vec![Role::Server] } else { Vec::new() },
        }
    }
}

impl IssueCommand {
    fn run(self) -> anyhow::Result<ExitCode> {
        let key = read_signing_key("--key", &self.key)?;
        let now = now()?;
        let id = random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let claims = Claims {
            subject: self.subject,
            id,
            expires: now.after(u64::from(self.minutes) * 60),
            not_before: None,
            client_key: public_key("--client-key", &self.client_key, parse_client_key)?,
            grant: self.grant.grant(),
        };
        let token = key.issue(&claims)?;
        if claims.grant.comtrees.iter().all(is_nothing) {
            print_note("the token grants nothing; see --publish, --subscribe and --to");
        }
        if self.json {
            let told = json!({ "token": token, "id": claims.id, "expires": claims.expires });
            print_line(told)?;
        } else {
            print_line(token)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl DelegateCommand {
    fn run(self) -> anyhow::Result<ExitCode> {
        let delegation = Delegation {
            key: public_key("--to-key", &self.to_key, str::parse)?,
            expires: now()?.after(u64::from(self.days) * 24 * 3600),
            longest_s: u64::from(self.minutes) * 60,
            ceiling: self.ceiling.grant(),
        };
        print_line(read_signing_key("--key", &self.key)?.delegate(&delegation)?)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl InspectCommand {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (token, now) = (given(self.token)?, now()?);
        let Trust { keys, revoked } = match &self.trust_file {
            Some(path) => trust::read(path)?,
            None => {
                let delegations: Vec<&str> = self.delegation.iter().map(String::as_str).collect();
                let keys = self.trust.iter().map(|key| public_key("--trust", key, str::parse));
                let keys = keys.collect::<Result<Vec<PublicKey>, _>>()?;
                let keys = KeySet::new(keys, &delegations, now).context("--delegation")?;
                Trust { keys, revoked: Revocations::new(0) }
            }
        };
        let token = token.as_str();
        let said = Claims::read_unverified(token).map_err(|error| anyhow!("TOKEN: {error}"))?;
        let verdict = keys.verify(token, now, &revoked);
        let refusal = verdict.as_ref().err().map(ToString::to_string);
        if self.json {
            print_line(json!({ "claims": said, "valid": verdict.is_ok(), "why": refusal }))?;
        } else {
            print_line(serde_json::to_string_pretty(&said)?)?;
            match refusal {
                None => print_note(format_args!("a relay with these keys takes it")),
                Some(why) => print_note(format_args!("a relay with these keys refuses it: {why}")),
            }
        }
        Ok(if verdict.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn one_address(text: &str) -> Result<Address, String> {
    match text.parse()? {
        Unicast::Only(address) => Ok(address),
        _ => Err("give one address, such as 1.64".to_owned()),
    }
}

fn is_nothing(grant: &ComtreeGrant) -> bool {
    let ComtreeGrant { publish, subscribe, unicast, .. } = grant;
    publish.groups.is_empty() && subscribe.groups.is_empty() && *unicast == Unicast::Nobody
}

/// A public key that a flag gives. What is in its place may be a secret, which no error repeats.
fn public_key<T, E: Display>(
    flag: &str,
    text: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> anyhow::Result<T> {
    if text.contains("secret") {
        bail!("{flag}: that is a secret key; give the public one that was printed with it");
    }
    parse(text).map_err(|error| anyhow!("{flag}: {error}"))
}

/// A token as it was given, or from standard input.
fn given(mut token: String) -> anyhow::Result<String> {
    if token == "-" {
        token.clear();
        std::io::stdin().read_to_string(&mut token).context("standard input")?;
    }
    Ok(token.trim().to_owned())
}

/// The signing key in a file that a flag names.
pub(crate) fn read_signing_key(flag: &str, path: &Path) -> anyhow::Result<SigningKey> {
    let told = || format!("{flag} {}", path.display());
    let text = std::fs::read_to_string(path).with_context(told)?;
    text.trim().parse().with_context(told)
}

pub(crate) fn now() -> anyhow::Result<UnixTime> {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Ok(UnixTime(since.as_secs())),
        Err(_) => bail!("this machine's clock is before 1970; set it"),
    }
}

pub(crate) fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("no random numbers: {error}"))?;
    Ok(bytes)
}
