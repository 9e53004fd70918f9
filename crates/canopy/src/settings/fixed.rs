//! The settings that a running relay cannot change.

use super::RelaySettings;
use canopy_node::NodeConfig;
use canopy_relay::Mode;
use std::mem::discriminant;

impl RelaySettings {
    /// The settings, by their keys, that `after` has otherwise and that only a restart changes.
    pub(crate) fn fixed(&self, after: &RelaySettings) -> Vec<&'static str> {
        let differ = [
            ("key", self.key != after.key),
            ("console", self.console != after.console),
            ("metrics", self.metrics != after.metrics),
            // There is no way from asking for tokens to not asking, nor back.
            ("trust", self.trust.is_some() != after.trust.is_some()),
        ];
        let differ = differ
            .into_iter()
            .chain(of_the_relay(&self.node, &after.node))
            .chain(limits(&self.node, &after.node));
        differ.filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }
}

fn of_the_relay(before: &NodeConfig, after: &NodeConfig) -> [(&'static str, bool); 6] {
    let NodeConfig { listen, mode, threads, engine, engine_folder, max_datagram, .. } = before;
    let tick = |mode| match mode {
        Mode::Periodic { tick } => Some(tick),
        Mode::Immediate => None,
    };
    [
        ("listen", *listen != after.listen),
        if discriminant(mode) == discriminant(&after.mode) {
            ("tick_ms", tick(*mode) != tick(after.mode))
        } else {
            ("mode", true)
        },
        ("threads", *threads != after.threads),
        ("engine", *engine != after.engine),
        ("engine_folder", *engine_folder != after.engine_folder),
        ("max_datagram", *max_datagram != after.max_datagram),
    ]
}

fn limits(before: &NodeConfig, after: &NodeConfig) -> [(&'static str, bool); 23] {
    let (tables, budgets, gate) = (&before.tables, &before.budgets, &before.gate);
    let (member, comtree) = (&budgets.member, &budgets.comtree);
    let (next_member, next_comtree) = (&after.budgets.member, &after.budgets.comtree);
    let (lives, next_lives) = (&before.session_limits, &after.session_limits);
    let next_gate = &after.gate;
    [
        ("max_sessions", before.max_sessions != after.max_sessions),
        ("max_groups", tables.max_groups != after.tables.max_groups),
        ("max_subscriptions", tables.max_subscriptions != after.tables.max_subscriptions),
        (
            "max_new_groups_per_participant",
            tables.max_new_groups_per_participant != after.tables.max_new_groups_per_participant,
        ),
        ("max_flow_pairs", tables.max_flow_pairs != after.tables.max_flow_pairs),
        ("max_routes", tables.max_routes != after.tables.max_routes),
        ("member_up_packets", member.up_packets != next_member.up_packets),
        ("member_up_bits", member.up_bits != next_member.up_bits),
        ("member_down_packets", member.down_packets != next_member.down_packets),
        ("member_down_bits", member.down_bits != next_member.down_bits),
        ("path_budgets", budgets.paths != after.budgets.paths),
        ("comtree_up_packets", comtree.up_packets != next_comtree.up_packets),
        ("comtree_up_bits", comtree.up_bits != next_comtree.up_bits),
        (
            "subscription_changes",
            budgets.subscription_changes != after.budgets.subscription_changes,
        ),
        ("handshakes_per_ip", gate.handshakes_per_ip != next_gate.handshakes_per_ip),
        ("handshakes_per_prefix", gate.handshakes_per_prefix != next_gate.handshakes_per_prefix),
        ("sessions_per_ip", gate.sessions_per_ip != next_gate.sessions_per_ip),
        ("replies_per_ip_port", gate.replies_per_ip_port != next_gate.replies_per_ip_port),
        ("session_lifetime_ms", lives.lifetime != next_lives.lifetime),
        ("keepalive_ms", lives.keepalive != next_lives.keepalive),
        ("subscription_lifetime_ms", lives.subscription != next_lives.subscription),
        ("address_rest_ms", before.address_rest != after.address_rest),
        ("drain_ms", before.drain != after.drain),
    ]
}
