// The kernel's side of the clone engines: one packet becomes one for each member of a set.
//
// User space is authoritative. It writes the members into a slot, says in the slot which of them
// the next packet is for, and hands over that one packet; what became of it is in the slot when
// its system call returns. Nothing here decides who gets what, and nothing is remembered from one
// packet to the next. crates/engines/src/clone/slot.rs has the same structures.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define SLOTS 16
#define MEMBERS 1024
// Copies of one packet: a longer loop would hold off everything else on this processor.
#define CHUNK 128

struct member {
	__u8 mac[ETH_ALEN];
	__be16 port;
	__be32 address[4]; // an IPv4 address is the first word
	__u32 sum;         // of the address, in one's complement
	__u32 reserved;
};

struct slot {
	// Written by user space before a send.
	__u16 total; // members in the table
	__u16 first; // the first that this packet is for; behind the last comes the first again
	__u16 count; // how many it is for; the last of them gets the packet itself
	__be16 sequence;    // the packet's destination port; any other packet is an old one
	__be16 source_port; // where the copies come from
	__u16 length;       // bytes of UDP payload
	// Written here.
	__u16 served; // how many have got theirs
	__u16 ran;    // 1: the packet was seen
	__s32 refused; // why the copy behind the last one served was not taken
	__u32 unused;
	__u64 copies; // since the slot was claimed
	__u8 device_mac[ETH_ALEN]; // where xdp's copies come from; written by user space
	__u16 reserved;
	__u64 lost[CHUNK / 64]; // a bit for each that was served and that the device lost (xdp)
	struct member members[MEMBERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

// Which sockets send triggers, and to which slot they belong. Goes with the socket.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} triggers SEC(".maps");

static __always_inline __u32 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline __u32 sum32(__u32 word)
{
	return (word & 0xffff) + (word >> 16);
}

// The sum of all words but these, where `sum` is that of all.
static __always_inline __u32 without(__u32 sum, __u32 words)
{
	return fold(sum + (~fold(words) & 0xffff));
}

static __always_inline __u32 sum_of_address(const __be32 address[4])
{
	return fold(sum32(address[0]) + sum32(address[1]) + sum32(address[2]) + sum32(address[3]));
}

// What stays the same for all copies of a packet.
struct headers {
	__u32 ip_sum;  // of the IPv4 header without the destination
	__u32 udp_sum; // of what the UDP checksum covers, without destination address and port
	__u32 partial; // 1: the device completes the checksum; the field holds the pseudo-header's
	__u32 is_ipv6;
	__be16 source_port;
};

// Bytes of the headers; behind Ethernet's, the others are not aligned, which this kernel's packets
// never are.
#define IPV4_HEADERS (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define IPV6_HEADERS (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct udphdr))
#define UDP_OF_IPV4 (sizeof(struct ethhdr) + sizeof(struct iphdr))
#define UDP_OF_IPV6 (sizeof(struct ethhdr) + sizeof(struct ipv6hdr))

static __always_inline __u16 checksum_for(const struct headers *headers, const struct member *member)
{
	if (headers->partial)
		return fold(headers->udp_sum + member->sum);
	__u16 checksum = ~fold(headers->udp_sum + member->sum + member->port);
	return checksum ? checksum : 0xffff;
}

// Makes the packet that member's. Returns 0 if it has not the headers that it had before.
static __always_inline int address_to(void *data, void *end, const struct headers *headers,
				      const struct member *member)
{
	struct udphdr *udp;

	if (headers->is_ipv6) {
		struct ipv6hdr *ip = data + sizeof(struct ethhdr);
		if (data + IPV6_HEADERS > end)
			return 0;
		__builtin_memcpy(&ip->daddr, member->address, 16);
		udp = data + UDP_OF_IPV6;
	} else {
		struct iphdr *ip = data + sizeof(struct ethhdr);
		if (data + IPV4_HEADERS > end)
			return 0;
		ip->daddr = member->address[0];
		ip->check = ~fold(headers->ip_sum + member->sum);
		udp = data + UDP_OF_IPV4;
	}
	__builtin_memcpy(data, member->mac, ETH_ALEN);
	udp->source = headers->source_port;
	udp->dest = member->port;
	udp->check = checksum_for(headers, member);
	return 1;
}

static __always_inline struct member *member_of(struct slot *slot, __u32 number)
{
	__u32 place = slot->first + number;

	if (place >= slot->total)
		place -= slot->total;
	// Out of range only if user space wrote nonsense, which then is its own.
	return &slot->members[place & (MEMBERS - 1)];
}

// The copy was taken, and another was dropped for it.
#define NET_XMIT_CN 2

// ---- tc: the trigger comes down the sending device's own way, and is cloned there.

struct walk {
	struct __sk_buff *skb;
	struct slot *slot;
	struct headers headers;
};

static long clone_to_next(__u32 number, struct walk *walk)
{
	struct __sk_buff *skb = walk->skb;
	struct slot *slot = walk->slot;
	struct member *member = member_of(slot, number);

	// The pointers of the time before a clone are no longer good.
	if (!address_to((void *)(long)skb->data, (void *)(long)skb->data_end,
				   &walk->headers, member)) {
		slot->refused = -1;
		return 1;
	}
	long refused = bpf_clone_redirect(skb, skb->ifindex, 0);
	if (refused && refused != NET_XMIT_CN) {
		slot->refused = refused;
		return 1;
	}
	slot->served = number + 1;
	slot->refused = refused;
	// After one that was dropped for this one, no more are added to the queue for now.
	return refused != 0;
}

// Reads the headers of a trigger. Returns 0 if it is not the one that the slot waits for.
static __always_inline int read_headers(struct __sk_buff *skb, struct slot *slot,
					struct headers *headers)
{
	__u32 old_address, udp_offset;
	void *data, *end;
	struct udphdr *udp;

	headers->is_ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	if (bpf_skb_pull_data(skb, headers->is_ipv6 ? IPV6_HEADERS : IPV4_HEADERS))
		return 0;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (headers->is_ipv6) {
		struct ipv6hdr *ip = data + sizeof(struct ethhdr);
		if (data + IPV6_HEADERS > end || ip->nexthdr != IPPROTO_UDP)
			return 0;
		old_address = sum_of_address((const __be32 *)&ip->daddr);
		udp_offset = UDP_OF_IPV6;
		udp = data + UDP_OF_IPV6;
	} else {
		struct iphdr *ip = data + sizeof(struct ethhdr);
		if (data + IPV4_HEADERS > end || skb->protocol != bpf_htons(ETH_P_IP) ||
		    ip->ihl != 5 || ip->protocol != IPPROTO_UDP || ip->frag_off & bpf_htons(0x3fff))
			return 0;
		old_address = sum32(ip->daddr);
		headers->ip_sum = without(~ip->check & 0xffff, old_address);
		udp_offset = UDP_OF_IPV4;
		udp = data + UDP_OF_IPV4;
	}
	if (udp->dest != slot->sequence || bpf_ntohs(udp->len) != slot->length + sizeof(*udp))
		return 0;
	__u16 checksum = udp->check, source = udp->source, dest = udp->dest;
	headers->source_port = slot->source_port;
	// Changes nothing exactly if the device is to complete the checksum.
	bpf_l4_csum_replace(skb, udp_offset + __builtin_offsetof(struct udphdr, check), 0, 0x0101, 2);
	data = (void *)(long)skb->data;
	udp = data + udp_offset;
	if ((void *)(udp + 1) > (void *)(long)skb->data_end)
		return 0;
	headers->partial = udp->check == checksum;
	if (headers->partial)
		headers->udp_sum = without(checksum, old_address);
	else
		headers->udp_sum = fold(without(~checksum & 0xffff, old_address + source + dest) +
					slot->source_port);
	return 1;
}

SEC("classifier")
int clone_to_members(struct __sk_buff *skb)
{
	struct bpf_sock *socket = skb->sk;

	if (!socket)
		return TC_ACT_UNSPEC;
	socket = bpf_sk_fullsock(socket);
	if (!socket)
		return TC_ACT_UNSPEC;
	__u32 *number = bpf_sk_storage_get(&triggers, socket, 0, 0);
	if (!number)
		return TC_ACT_UNSPEC;
	struct slot *slot = bpf_map_lookup_elem(&slots, number);
	if (!slot)
		return TC_ACT_SHOT;
	struct walk walk = { .skb = skb, .slot = slot };
	// An old trigger waited somewhere on its way: what it was for has been sent otherwise.
	if (!read_headers(skb, slot, &walk.headers))
		return TC_ACT_SHOT;
	__u32 clones = slot->count - 1;
	if (clones >= CHUNK)
		return TC_ACT_SHOT;
	slot->ran = 1;
	slot->sequence = 0;
	bpf_loop(clones, clone_to_next, &walk, 0);
	slot->copies += slot->served;
	if (slot->served != clones)
		return TC_ACT_SHOT;
	struct member *last = member_of(slot, clones);
	if (!address_to((void *)(long)skb->data, (void *)(long)skb->data_end,
				 &walk.headers, last))
		return TC_ACT_SHOT;
	slot->served = clones + 1;
	return TC_ACT_UNSPEC;
}

// ---- xdp: a frame written to a tap is broadcast to as many entries of a device map as it has
// ---- members; each copy is addressed on its way out.

struct broadcast {
	__u32 slot;
	__u32 next;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct broadcast);
} broadcasts SEC(".maps");

// By count: a device map with as many entries for the one device.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, CHUNK + 1);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_DEVMAP);
		__uint(max_entries, CHUNK);
		__uint(key_size, sizeof(__u32));
		__uint(value_size, sizeof(struct bpf_devmap_val));
	});
} fans SEC(".maps");

// What user space writes in the place of the Ethernet source address, of a frame whose IP and UDP
// checksums lack the destination's share.
struct order {
	__u16 slot;
	__u16 reserved;
	__u16 sequence;
} __attribute__((packed));

SEC("xdp")
int broadcast_frame(struct xdp_md *context)
{
	void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	struct ethhdr *ethernet = data;
	__u32 zero = 0;

	if ((void *)(ethernet + 1) > end)
		return XDP_DROP;
	struct order *order = (void *)ethernet->h_source;
	__u32 number = order->slot;
	struct slot *slot = bpf_map_lookup_elem(&slots, &number);
	struct broadcast *broadcast = bpf_map_lookup_elem(&broadcasts, &zero);
	if (!slot || !broadcast || order->sequence != slot->sequence)
		return XDP_DROP;
	__u32 count = slot->count;
	void *fan = bpf_map_lookup_elem(&fans, &count);
	if (!fan)
		return XDP_DROP;
	broadcast->slot = number;
	broadcast->next = 0;
	slot->ran = 1;
	slot->sequence = 0;
	return bpf_redirect_map(fan, 0, BPF_F_BROADCAST);
}

SEC("xdp/devmap")
int address_copy(struct xdp_md *context)
{
	void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	__u32 zero = 0;
	struct headers headers = {};

	struct broadcast *broadcast = bpf_map_lookup_elem(&broadcasts, &zero);
	if (!broadcast)
		return XDP_DROP;
	struct slot *slot = bpf_map_lookup_elem(&slots, &broadcast->slot);
	if (!slot)
		return XDP_DROP;
	// An engine that is being opened looks whether frames get this far.
	if (!slot->total) {
		slot->served = 1;
		return XDP_DROP;
	}
	struct member *member = member_of(slot, broadcast->next);
	struct ethhdr *ethernet = data;
	struct udphdr *udp;
	if (data + IPV4_HEADERS > end)
		return XDP_DROP;
	headers.source_port = slot->source_port;
	headers.is_ipv6 = ethernet->h_proto == bpf_htons(ETH_P_IPV6);
	// Who may write frames may send UDP, and nothing else.
	if (headers.is_ipv6) {
		struct ipv6hdr *ip = data + sizeof(struct ethhdr);
		udp = data + UDP_OF_IPV6;
		if (data + IPV6_HEADERS > end || ip->nexthdr != IPPROTO_UDP)
			return XDP_DROP;
	} else {
		struct iphdr *ip = data + sizeof(struct ethhdr);
		if (ethernet->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 ||
		    ip->protocol != IPPROTO_UDP)
			return XDP_DROP;
		headers.ip_sum = ip->check;
		udp = data + UDP_OF_IPV4;
	}
	headers.udp_sum = udp->check;
	if (!address_to(data, end, &headers, member))
		return XDP_DROP;
	// Every copy has its own page, but the frame's Ethernet source is still an order.
	__builtin_memcpy(ethernet->h_source, slot->device_mac, ETH_ALEN);
	broadcast->next++;
	slot->served = broadcast->next;
	slot->copies++;
	return XDP_PASS;
}

// Of the devices of a tracepoint, what tells them from all others.
struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __attribute__((preserve_access_index));

// The device to watch, the tap, and their network namespace; set when the programs are loaded.
const volatile int device_index = 0;
const volatile int tap_index = 0;
const volatile __u32 namespace_number = 0;

// The kernel hands over at most so many frames at a time.
#define BULK 16

// A device that takes not all of the frames it is handed refuses the last.
SEC("tp_btf/xdp_devmap_xmit")
int note_losses(__u64 *arguments)
{
	const struct net_device *from = (void *)arguments[0], *to = (void *)arguments[1];
	int drops = (int)arguments[3];
	__u32 zero = 0;

	// Indexes alone say little: every namespace has the same.
	if (drops <= 0 || to->ifindex != device_index || from->ifindex != tap_index ||
	    to->nd_net.net->ns.inum != namespace_number)
		return 0;
	struct broadcast *broadcast = bpf_map_lookup_elem(&broadcasts, &zero);
	if (!broadcast)
		return 0;
	struct slot *slot = bpf_map_lookup_elem(&slots, &broadcast->slot);
	if (!slot)
		return 0;
	for (int back = 1; back <= BULK && back <= drops; back++) {
		__u32 number = broadcast->next - back;
		if (number < CHUNK)
			slot->lost[number / 64] |= 1ULL << (number % 64);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
