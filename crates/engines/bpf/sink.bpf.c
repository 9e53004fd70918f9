// A sink for benches: counts UDP datagrams by destination port where they arrive, and drops them.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

// Counts a packet of so many datagrams. Returns 0 if it is not UDP.
static __always_inline int count(void *data, void *end, __u32 datagrams)
{
	struct ethhdr *ethernet = data;
	struct iphdr *ipv4 = data + sizeof(*ethernet);
	struct ipv6hdr *ipv6 = data + sizeof(*ethernet);
	struct udphdr *udp;

	if ((void *)(ipv4 + 1) + sizeof(*udp) > end)
		return 0;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP) && ipv4->protocol == IPPROTO_UDP)
		udp = (void *)(ipv4 + 1);
	else if (ethernet->h_proto == bpf_htons(ETH_P_IPV6) &&
		 (void *)(ipv6 + 1) + sizeof(*udp) <= end && ipv6->nexthdr == IPPROTO_UDP)
		udp = (void *)(ipv6 + 1);
	else
		return 0;
	__u32 port = bpf_ntohs(udp->dest);
	__u64 *total = bpf_map_lookup_elem(&counts, &port);
	if (total)
		__sync_fetch_and_add(total, datagrams);
	return 1;
}

SEC("classifier")
int sink_at_ingress(struct __sk_buff *skb)
{
	if (bpf_skb_pull_data(skb, sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr)))
		return TC_ACT_UNSPEC;
	__u32 datagrams = skb->gso_segs ? skb->gso_segs : 1;
	return count((void *)(long)skb->data, (void *)(long)skb->data_end, datagrams) ? TC_ACT_SHOT :
										      TC_ACT_UNSPEC;
}

SEC("xdp")
int sink_at_driver(struct xdp_md *context)
{
	return count((void *)(long)context->data, (void *)(long)context->data_end, 1) ? XDP_DROP :
										       XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
