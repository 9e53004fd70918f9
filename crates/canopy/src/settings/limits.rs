//! Limits: how much a relay holds, how long things live, and what one participant, one comtree and one
//! place of the network may cost.

use super::sources::Sources;
use anyhow::bail;
use canopy_relay::{ADDRESS_REST, Budget, Budgets, GateLimits, PathShare, TableLimits};
use canopy_session::SessionLimits;
use canopy_wire::PORTABLE_SITES;
use clap::Args;
use std::time::Duration;

const HOUR: u64 = 3_600_000;

/// Flags for the limits, which few need.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// The most participants at a time [default: 10000]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MAX_SESSIONS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    max_sessions: Option<String>,
    /// The longest datagram in bytes that the network takes, 1232 to 1452 [default: 1232]
    #[arg(
        long,
        value_name = "BYTES",
        env = "CANOPY_MAX_DATAGRAM",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    max_datagram: Option<String>,
    /// The most groups with subscribers in a data thread [default: 65536]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MAX_GROUPS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    max_groups: Option<String>,
    /// The most subscriptions in a data thread [default: 262144]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MAX_SUBSCRIPTIONS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    max_subscriptions: Option<String>,
    /// The most ways to endpoints and sites behind other relays that are learned, for each data thread
    /// [default: 131072]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MAX_ROUTES",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    max_routes: Option<String>,
    /// The most subscriptions of one participant [default: 4096]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MAX_SUBSCRIPTIONS_PER_PARTICIPANT",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    max_subscriptions_per_participant: Option<String>,
    /// The most groups that one participant may be the first to subscribe to [default: 1024]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MAX_NEW_GROUPS_PER_PARTICIPANT",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    max_new_groups_per_participant: Option<String>,
    /// The most pairs of a receiver that cannot be sent everything and a flow that it wants, for each data
    /// thread [default: 1048576]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MAX_FLOW_PAIRS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    max_flow_pairs: Option<String>,
    /// Updates a second of one participant; 0 for no limit [default: 50000]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MEMBER_UP_PACKETS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    member_up_packets: Option<String>,
    /// Bits a second of one participant; 0 for no limit [default: 100000000]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MEMBER_UP_BITS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    member_up_bits: Option<String>,
    /// Updates a second to one participant; 0 for no limit [default: 0]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MEMBER_DOWN_PACKETS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    member_down_packets: Option<String>,
    /// Bits a second to one participant; 0 for no limit [default: 0]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_MEMBER_DOWN_BITS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    member_down_bits: Option<String>,
    /// Whose paths are asked how much they bear, and get no more: all | beyond-host | off [default:
    /// beyond-host]
    #[arg(long, value_name = "WHOSE", env = "CANOPY_PATH_BUDGETS", hide_env_values = true)]
    path_budgets: Option<String>,
    /// Updates a second of a comtree's participants together; 0 for no limit [default: 0]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_COMTREE_UP_PACKETS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    comtree_up_packets: Option<String>,
    /// Bits a second of a comtree's participants together; 0 for no limit [default: 0]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_COMTREE_UP_BITS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    comtree_up_bits: Option<String>,
    /// Changes of subscriptions a second of one participant; 0 for no limit [default: 20000]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_SUBSCRIPTION_CHANGES",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    subscription_changes: Option<String>,
    /// Handshakes a second of an IPv4 address or IPv6 /64; 0 for no limit [default: 32]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_HANDSHAKES_PER_IP",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    handshakes_per_ip: Option<String>,
    /// Handshakes a second of an IPv4 /24 or IPv6 /48; 0 for no limit [default: 128]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_HANDSHAKES_PER_PREFIX",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    handshakes_per_prefix: Option<String>,
    /// Sessions at a time of an IPv4 address or IPv6 /64; 0 for no limit [default: 64]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_SESSIONS_PER_IP",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    sessions_per_ip: Option<String>,
    /// Answers a second to one ip:port without a session; 0 for no limit [default: 50]
    #[arg(
        long,
        value_name = "N",
        env = "CANOPY_REPLIES_PER_IP_PORT",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    replies_per_ip_port: Option<String>,
    /// How long a session lives without a sign of life from its participant [default: 10000]
    #[arg(
        long,
        value_name = "MS",
        env = "CANOPY_SESSION_LIFETIME_MS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    session_lifetime_ms: Option<String>,
    /// How long a participant may say nothing before it sends a keepalive [default: 2000]
    #[arg(
        long,
        value_name = "MS",
        env = "CANOPY_KEEPALIVE_MS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    keepalive_ms: Option<String>,
    /// How long a subscription lives without being refreshed [default: 60000]
    #[arg(
        long,
        value_name = "MS",
        env = "CANOPY_SUBSCRIPTION_LIFETIME_MS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    subscription_lifetime_ms: Option<String>,
    /// How long the address of a participant that left is given to nobody else [default: 600000]
    #[arg(
        long,
        value_name = "MS",
        env = "CANOPY_ADDRESS_REST_MS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    address_rest_ms: Option<String>,
    /// How long participants may take to leave when the relay stops [default: 5000]
    #[arg(
        long,
        value_name = "MS",
        env = "CANOPY_DRAIN_MS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    drain_ms: Option<String>,
}

impl LimitArgs {
    /// What was given, by the key that the file has for it.
    pub(super) fn by_key(&self) -> [(&'static str, &Option<String>); 25] {
        [
            ("max_sessions", &self.max_sessions),
            ("max_datagram", &self.max_datagram),
            ("max_groups", &self.max_groups),
            ("max_subscriptions", &self.max_subscriptions),
            ("max_routes", &self.max_routes),
            ("max_subscriptions_per_participant", &self.max_subscriptions_per_participant),
            ("max_new_groups_per_participant", &self.max_new_groups_per_participant),
            ("max_flow_pairs", &self.max_flow_pairs),
            ("member_up_packets", &self.member_up_packets),
            ("member_up_bits", &self.member_up_bits),
            ("member_down_packets", &self.member_down_packets),
            ("member_down_bits", &self.member_down_bits),
            ("path_budgets", &self.path_budgets),
            ("comtree_up_packets", &self.comtree_up_packets),
            ("comtree_up_bits", &self.comtree_up_bits),
            ("subscription_changes", &self.subscription_changes),
            ("handshakes_per_ip", &self.handshakes_per_ip),
            ("handshakes_per_prefix", &self.handshakes_per_prefix),
            ("sessions_per_ip", &self.sessions_per_ip),
            ("replies_per_ip_port", &self.replies_per_ip_port),
            ("session_lifetime_ms", &self.session_lifetime_ms),
            ("keepalive_ms", &self.keepalive_ms),
            ("subscription_lifetime_ms", &self.subscription_lifetime_ms),
            ("address_rest_ms", &self.address_rest_ms),
            ("drain_ms", &self.drain_ms),
        ]
    }
}

/// How long an address rests.
pub(super) fn check_rest(sources: &Sources) -> anyhow::Result<Duration> {
    millis(sources, "address_rest_ms", 0, HOUR, ADDRESS_REST)
}

pub(super) fn check_tables(sources: &Sources) -> anyhow::Result<TableLimits> {
    let default = TableLimits::default();
    let table = |key: &str, default: u32| sources.number(key, 1..=1 << 22, default.into());
    Ok(TableLimits {
        max_groups: table("max_groups", default.max_groups)? as u32,
        max_subscriptions: table("max_subscriptions", default.max_subscriptions)? as u32,
        max_routes: table("max_routes", default.max_routes)? as u32,
        max_subscriptions_per_participant: table(
            "max_subscriptions_per_participant",
            default.max_subscriptions_per_participant,
        )? as u32,
        max_new_groups_per_participant: table(
            "max_new_groups_per_participant",
            default.max_new_groups_per_participant,
        )? as u32,
        max_flow_pairs: table("max_flow_pairs", default.max_flow_pairs)? as u32,
    })
}

pub(super) fn check_lifetimes(sources: &Sources) -> anyhow::Result<SessionLimits> {
    let default = SessionLimits::default();
    let lifetimes = SessionLimits {
        lifetime: millis(sources, "session_lifetime_ms", 10, HOUR, default.lifetime)?,
        keepalive: millis(sources, "keepalive_ms", 10, HOUR, default.keepalive)?,
        // Participants refresh after a third: there must be time for losses.
        subscription: millis(
            sources,
            "subscription_lifetime_ms",
            1_000,
            HOUR,
            default.subscription,
        )?,
    };
    if lifetimes.lifetime < lifetimes.keepalive * 2 {
        let place =
            ["session_lifetime_ms", "keepalive_ms"].iter().find_map(|key| sources.place(key));
        bail!(
            "{}: a session must live at least two keepalives; raise session_lifetime_ms, or lower \
             keepalive_ms",
            place.unwrap_or_default()
        );
    }
    Ok(lifetimes)
}

pub(super) fn millis(
    sources: &Sources,
    key: &str,
    least: u64,
    most: u64,
    default: Duration,
) -> anyhow::Result<Duration> {
    sources.number(key, least..=most, default.as_millis() as u64).map(Duration::from_millis)
}

/// The most bits a second that can be meant: a terabit.
pub(super) const MOST_BITS: u64 = 1_000_000_000_000;
/// The most updates a second that can be meant.
pub(super) const MOST_PACKETS: u64 = 1_000_000_000;
/// The highest site that a relay may have. Those above are portable, and no relay's.
pub(super) const MAX_SITE: u64 = *PORTABLE_SITES.start() as u64 - 1;

/// What participants may send, and be sent.
pub(super) fn check_budgets(sources: &Sources) -> anyhow::Result<Budgets> {
    let default = Budgets::default();
    let budget = |[packets, bits]: [&str; 2], default: Budget| -> anyhow::Result<Budget> {
        Ok(Budget {
            up_packets: sources.number(packets, 0..=MOST_PACKETS, default.up_packets)?,
            up_bits: sources.number(bits, 0..=MOST_BITS, default.up_bits)?,
            ..default
        })
    };
    let changes = sources.number(
        "subscription_changes",
        0..=1_000_000_000,
        default.subscription_changes.into(),
    )?;
    let down = Budget {
        down_packets: sources.number("member_down_packets", 0..=1_000_000_000, 0)?,
        down_bits: sources.number("member_down_bits", 0..=MOST_BITS, 0)?,
        ..default.member
    };
    Ok(Budgets {
        member: budget(["member_up_packets", "member_up_bits"], down)?,
        comtree: budget(["comtree_up_packets", "comtree_up_bits"], default.comtree)?,
        subscription_changes: changes as u32,
        paths: sources.text("path_budgets", "beyond-host").check(|name| parse_paths(&name))?,
    })
}

fn parse_paths(name: &str) -> Result<PathShare, String> {
    match name {
        "all" => Ok(PathShare::All),
        "beyond-host" => Ok(PathShare::BeyondHost),
        "off" => Ok(PathShare::Off),
        _ => Err(format!("there are no path budgets {name:?}; choose all, beyond-host or off")),
    }
}

/// What one place of the network may cost.
pub(super) fn check_gate(sources: &Sources) -> anyhow::Result<GateLimits> {
    let default = GateLimits::default();
    let number = |key: &str, default: u32| -> anyhow::Result<u32> {
        Ok(sources.number(key, 0..=1_000_000, default.into())? as u32)
    };
    Ok(GateLimits {
        handshakes_per_ip: number("handshakes_per_ip", default.handshakes_per_ip)?,
        handshakes_per_prefix: number("handshakes_per_prefix", default.handshakes_per_prefix)?,
        sessions_per_ip: number("sessions_per_ip", default.sessions_per_ip)?,
        replies_per_ip_port: number("replies_per_ip_port", default.replies_per_ip_port)?,
    })
}
