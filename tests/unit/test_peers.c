/* SPDX-License-Identifier: Apache-2.0 */
/* What same-node peers offer: taken when it is sound, found by (rank, segment, generation), given back without a trace.
 * */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/peers.h"
#include "samples.h"

#define N_RANKS 4u
#define OWN 1u

static struct peers *make(const struct arena *own, const struct control *control)
{
    struct peers *peers;

    cr_assert_eq(peers_new(N_RANKS, OWN, own, control, &peers, NULL), 0);
    return peers;
}

static struct local_message offer_of(uint32_t rank, uint32_t kind, uint32_t segment, uint32_t generation,
                                     uint64_t bytes)
{
    return (struct local_message){ .magic = LOCAL_MAGIC, .version = WIRE_VERSION, .type = LOCAL_OFFER, .kind = kind,
                                   .segment = segment, .generation = generation, .rank = rank, .bytes = bytes };
}

static int offer(struct peers *peers, const struct segment *segment, uint32_t rank, uint32_t number,
                 uint32_t generation)
{
    struct local_message message = offer_of(rank, LOCAL_ARENA, number, generation, segment->bytes);

    return peers_offer(peers, &message, dup(segment->fd), NULL);
}

static struct segment make_segment(const char *text)
{
    struct segment segment;

    cr_assert_eq(segment_new("test", 4096, 0, &segment, NULL), 0);
    strcpy(segment.base, text);
    return segment;
}

static const char *text_at(struct peers *peers, uint32_t rank, uint32_t number, uint32_t generation)
{
    const void *base;
    uint64_t bytes;

    return peers_arena(peers, rank, number, generation, &base, &bytes) ? base : "none";
}

Test(peers, an_offer_is_found_and_goes_without_a_trace)
{
    int n_fds = samples_n_fds();
    struct segment a = make_segment("first"), b = make_segment("second");
    struct peers *peers = make(NULL, NULL);
    struct local_message retract = offer_of(0, LOCAL_ARENA, 5, 1, 0);

    cr_assert_str_eq(text_at(peers, 0, 5, 1), "none");
    cr_assert_eq(offer(peers, &a, 0, 5, 1), 0);
    cr_assert_str_eq(text_at(peers, 0, 5, 1), "first");
    cr_assert_str_eq(text_at(peers, 0, 5, 2), "none");
    cr_assert_str_eq(text_at(peers, 0, 4, 1), "none");
    cr_assert_str_eq(text_at(peers, 2, 5, 1), "none");
    cr_assert_eq(offer(peers, &a, 0, 5, 1), -EALREADY);
    cr_assert_eq(peers_bytes(peers), 4096);
    cr_assert_eq(offer(peers, &b, 0, 5, 2), 0, "a newer generation takes its place");
    cr_assert_str_eq(text_at(peers, 0, 5, 1), "none");
    cr_assert_str_eq(text_at(peers, 0, 5, 2), "second");
    cr_assert_eq(offer(peers, &a, 0, 5, 1), -ESTALE);
    peers_retract(peers, &retract);
    cr_assert_str_eq(text_at(peers, 0, 5, 2), "second", "a retraction of an older one changes nothing");
    retract.generation = 2;
    peers_retract(peers, &retract);
    peers_retract(peers, &retract);
    cr_assert_str_eq(text_at(peers, 0, 5, 2), "none");
    cr_assert_eq(peers_bytes(peers), 0);
    cr_assert_eq(offer(peers, &b, 0, 5, 2), -ESTALE, "what was retracted is not mapped again");
    cr_assert_eq(offer(peers, &b, 0, 5, 3), 0);
    segment_fini(&a);
    segment_fini(&b);
    cr_assert_str_eq(text_at(peers, 0, 5, 3), "second", "the mapping outlives its owner");
    peers_free(peers);
    peers_free(NULL);
    cr_assert_eq(samples_n_fds(), n_fds);
}

Test(peers, out_of_bounds_and_unsound_offers_are_refused)
{
    int n_fds = samples_n_fds();
    struct segment a = make_segment("a");
    struct peers *peers = make(NULL, NULL);
    struct local_message message;
    int fds[2];

    cr_assert_eq(offer(peers, &a, N_RANKS, 0, 1), -EINVAL);
    cr_assert_eq(offer(peers, &a, UINT32_MAX, 0, 1), -EINVAL);
    cr_assert_eq(offer(peers, &a, OWN, 0, 1), -EINVAL, "nobody else is this rank");
    cr_assert_eq(offer(peers, &a, 0, LOCAL_MAX_SEGMENTS, 1), -EINVAL);
    message = offer_of(0, 99, 0, 1, a.bytes);
    cr_assert_eq(peers_offer(peers, &message, dup(a.fd), NULL), -EINVAL);
    message = offer_of(0, LOCAL_ARENA, 0, 1, a.bytes + 1);
    cr_assert_eq(peers_offer(peers, &message, dup(a.fd), NULL), -EINVAL);
    cr_assert_eq(peers_offer(peers, &message, -1, NULL), -EINVAL);
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(peers_offer(peers, &message, fds[0], NULL), -EINVAL);
    message = offer_of(0, LOCAL_CONTROL, 0, 1, a.bytes);
    cr_assert_eq(peers_offer(peers, &message, dup(a.fd), NULL), -EINVAL, "an arena is no control segment");
    message.type = LOCAL_RETRACT;
    message.rank = 77;
    peers_retract(peers, &message);
    message = offer_of(0, LOCAL_ARENA, 44, 1, 0);
    peers_retract(peers, &message);
    cr_assert_eq(peers_bytes(peers), 0);
    close(fds[1]);
    segment_fini(&a);
    peers_free(peers);
    cr_assert_eq(samples_n_fds(), n_fds);
}

Test(peers, control_segments_of_others_and_the_own_one)
{
    struct control own, other;
    struct control_view view;
    struct control_place place = { .offset = 17 }, read;
    struct local_message message;
    struct peers *peers;

    cr_assert_eq(control_new(OWN, N_RANKS, &own, NULL), 0);
    cr_assert_eq(control_new(2, N_RANKS, &other, NULL), 0);
    peers = make(NULL, &own);
    cr_assert(peers_control(peers, OWN, &view));
    cr_assert(!peers_control(peers, 2, &view));
    message = offer_of(2, LOCAL_CONTROL, 0, 0, other.segment.bytes);
    cr_assert_eq(peers_offer(peers, &message, dup(other.segment.fd), NULL), 0);
    cr_assert_eq(peers_offer(peers, &message, dup(other.segment.fd), NULL), -EALREADY);
    message.rank = 3;
    cr_assert_eq(peers_offer(peers, &message, dup(other.segment.fd), NULL), -EINVAL, "it says it is rank 2's");
    cr_assert(peers_control(peers, 2, &view));
    control_publish(&other, 9, &place);
    cr_assert(control_read(view, 9, &read) == 0 && read.offset == 17);
    cr_assert(!peers_control(peers, 3, &view) && !peers_control(peers, 99, &view));
    peers_free(peers);
    control_fini(&own);
    control_fini(&other);
}

Test(peers, the_own_arena_answers_under_the_own_rank)
{
    struct arena *arena;
    struct peers *peers;
    struct peers_of of;
    struct arena_place place;
    const void *base;
    void *data;
    uint64_t bytes;

    cr_assert_eq(arena_new(16 << 20, 0, &arena, NULL), 0);
    peers = make(arena, NULL);
    of = (struct peers_of){ peers, OWN };
    cr_assert_eq(arena_alloc(arena, 64, &data, NULL), 0);
    cr_assert(arena_find(arena, data, 64, &place));
    cr_assert(peers_lookup(&of, place.segment, place.generation, &base, &bytes));
    cr_assert((const char *)base + place.offset == data);
    cr_assert(!peers_lookup(&of, place.segment, place.generation + 1, &base, &bytes));
    peers_free(peers);
    arena_free(arena);
}

Test(peers, a_doorbell_rings_and_never_blocks)
{
    int n_fds = samples_n_fds(), bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), fds[2];
    struct peers *peers = make(NULL, NULL);
    struct local_message message = offer_of(3, LOCAL_DOORBELL, 0, 0, 0);
    struct pollfd poll_bell = { .fd = bell, .events = POLLIN };
    uint64_t count = UINT64_MAX - 1;

    peers_ring(peers, 3);
    cr_assert_eq(peers_offer(peers, &message, dup(bell), NULL), 0);
    cr_assert_eq(peers_offer(peers, &message, dup(bell), NULL), -EALREADY);
    peers_ring(peers, 3);
    peers_ring(peers, 77);
    cr_assert_eq(poll(&poll_bell, 1, 0), 1);
    cr_assert(read(bell, &count, sizeof count) == sizeof count && count == 1);
    count = UINT64_MAX - 1;
    cr_assert(write(bell, &count, sizeof count) == sizeof count);
    peers_ring(peers, 3);
    cr_assert_eq(pipe(fds), 0);
    message.rank = 2;
    cr_assert_eq(peers_offer(peers, &message, fds[1], NULL), -EINVAL, "a pipe can be full: it could block");
    close(fds[0]);
    peers_free(peers);
    close(bell);
    cr_assert_eq(samples_n_fds(), n_fds);
}
