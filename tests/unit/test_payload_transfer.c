/* SPDX-License-Identifier: Apache-2.0 */
/* Asking and serving over real sockets: credit, lost connections, asks that come too early, keys, and those that nobody
 * may make. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "payload_rig.h"
#include "samples.h"

static struct rig rig;
static uint64_t seed;

TestSuite(transfer, .timeout = 60);

static void begin(const char *name, uint32_t n, uint64_t max_rows, bool curve)
{
    seed = samples_seed(name);
    rig_begin(&rig, n, max_rows, curve, &seed);
}

static void fetch_all(void)
{
    cr_assert_eq(rig_entries(&rig), 0, "%s", rig.err.text);
    rig_place(&rig);
    cr_assert_eq(rig_fetch(&rig), 0, "%s", rig.err.text);
    rig_check(&rig);
}

Test(transfer, small_samples_travel_together)
{
    struct payload_client_stats stats;

    begin("small", RIG_SAMPLES, 20, false);
    fetch_all();
    payload_client_stats(rig.client, &stats);
    cr_assert_eq(stats.asks, 2, "one round trip for the directory, one for all bytes, not %d", (int)stats.asks);
    cr_assert_eq(stats.again, 0);
    rig_end(&rig);
}

Test(transfer, large_samples_come_in_pieces_within_the_credit)
{
    struct payload_client_stats stats;
    struct payload_server_stats served;
    uint64_t total = 0;

    begin("large", 12, 100000, false); /* up to 6.4 MB each */
    fetch_all();
    for (uint32_t i = 0; i < rig.source.n; i++)
        total += rig.got[i].bytes;
    payload_client_stats(rig.client, &stats);
    payload_server_stats(rig.server, &served);
    cr_assert_eq(stats.bytes, total);
    cr_assert_eq(served.bytes, total);
    cr_assert_leq(stats.most_bytes, PAYLOAD_PEER_BYTES);
    cr_assert_geq(served.answers, total / PAYLOAD_PIECE_BYTES);
    cr_assert_leq(served.most_flying, PAYLOAD_FLYING_BYTES);
    rig_end(&rig);
}

Test(transfer, encrypted_it_is_the_same)
{
    begin("encrypted", 16, 30000, true);
    fetch_all();
    cr_assert_eq(rig.refused_keys, 0);
    rig_end(&rig);
}

/* The connection is cut in the middle, again and again; nothing is lost, doubled or waits for ever. */
Test(transfer, a_lost_connection_is_made_again_and_only_what_is_missing_comes_again)
{
    struct payload_client_stats stats;
    uint32_t n_cuts = 0;

    begin("cut", 12, 60000, false);
    cr_assert_eq(rig_entries(&rig), 0, "%s", rig.err.text);
    rig_place(&rig);
    for (int rc = -EAGAIN; rc == -EAGAIN && n_cuts < 5;) {
        rc = payload_client_fetch(rig.client, &rig.pull, &rig.source, &rig.err);
        for (uint64_t i = samples_below(&seed, 12); i > 0; i--)
            rig_turn(&rig);
        rig_cut(&rig);
        for (uint64_t i = samples_below(&seed, 5); i > 0; i--)
            rig_turn(&rig);
        rig_serve_again(&rig);
        n_cuts++;
    }
    cr_assert_eq(rig_fetch(&rig), 0, "%s", rig.err.text);
    rig_check(&rig);
    payload_client_stats(rig.client, &stats);
    cr_assert_leq(stats.most_bytes, PAYLOAD_PEER_BYTES);
    rig_end(&rig);
}

Test(transfer, what_is_asked_before_the_step_is_decided_waits)
{
    struct payload_server_stats served;

    begin("early", 8, 100, false);
    rig.step_code = -EAGAIN;
    for (int i = 0; i < 200; i++) {
        cr_assert_eq(payload_client_entries(rig.client, &rig.pull, &rig.source, &rig.err), -EAGAIN);
        rig_turn(&rig);
    }
    rig.step_code = 0;
    fetch_all();
    payload_server_stats(rig.server, &served);
    cr_assert_eq(served.refused, 0);
    rig_end(&rig);
}

/* Its epoch has ended there, which poised will tell here: no failure of its own. */
Test(transfer, a_sender_whose_epoch_is_over_is_waited_for)
{
    char text[TRANSPORT_WAIT_TEXT];

    begin("over", 8, 100, false);
    rig.step_code = -ESHUTDOWN;
    for (int i = 0; i < 300; i++) {
        cr_assert_eq(payload_client_entries(rig.client, &rig.pull, &rig.source, &rig.err), -EAGAIN);
        rig_turn(&rig);
    }
    payload_client_waits_for(rig.client, &rig.source, text);
    cr_assert(strstr(text, "the directory of rank 0 at tcp://"), "%s", text);
    payload_client_forget(rig.client, 0);
    cr_assert_eq(payload_client_entries(rig.client, &rig.pull, &rig.source, &rig.err), -ESHUTDOWN);
    cr_assert(strstr(rig.err.text, "rank 0 left before its samples of step 40 were fetched"), "%s", rig.err.text);
    rig_end(&rig);
}

Test(transfer, done_is_said_until_it_is_heard)
{
    begin("done", 8, 100, false);
    cr_assert(payload_client_is_idle(rig.client));
    payload_client_done(rig.client, RIG_STEP, 0);
    cr_assert(!payload_client_is_idle(rig.client));
    rig_cut(&rig); /* nobody is there */
    for (int i = 0; i < 20; i++)
        rig_turn(&rig);
    rig_serve_again(&rig);
    for (int i = 0; i < 20000 && !payload_client_is_idle(rig.client); i++)
        rig_turn(&rig);
    cr_assert(payload_client_is_idle(rig.client));
    cr_assert(rig.n_done > 0 && rig.done_step == RIG_STEP && rig.done_rank == 1);
    rig_end(&rig);
}

/* On a clock of the test: nothing goes beyond what the limit allows, and it tells when more may. */
Test(transfer, the_limit_holds_payload_back)
{
    struct payload_server_stats served;
    uint64_t total = 0, begin_ns = 1000000000;

    begin("limit", 16, 60000, false);
    rig_limit(&rig, 10 << 20);
    rig.now_ns = begin_ns;
    cr_assert_eq(rig_entries(&rig), 0, "%s", rig.err.text);
    rig_place(&rig);
    for (uint32_t i = 0; i < rig.source.n; i++)
        total += rig.got[i].bytes;
    while (payload_client_fetch(rig.client, &rig.pull, &rig.source, &rig.err) == -EAGAIN) {
        for (int i = 0; i < 50; i++)
            rig_turn(&rig);
        payload_server_stats(rig.server, &served);
        /* a tenth of a second's burst, and the piece that goes below zero */
        cr_assert_leq(served.bytes,
                      (1 << 20) + PAYLOAD_PIECE_BYTES + (rig.now_ns - begin_ns) * (10 << 20) / 1000000000);
        if (payload_server_next_ns(rig.server) != UINT64_MAX)
            rig.now_ns = payload_server_next_ns(rig.server);
    }
    rig_check(&rig);
    cr_assert_geq(rig.now_ns - begin_ns + 300000000, total * 1000000000 / (10 << 20), "it took too little time");
    rig_end(&rig);
}

/* ---------------------------------------------------------------------------------------------------- what is wrong */

static void expect_refused(void *socket, const struct payload_message *msg, uint32_t code)
{
    struct payload_server_stats before, after;
    struct payload_message answer;

    payload_server_stats(rig.server, &before);
    cr_assert_eq(rig_ask(&rig, socket, msg, &answer), PAYLOAD_REFUSED, "%s", payload_type_name(answer.type));
    cr_assert_eq(answer.code, code, "refused as %u (%s), not %u", answer.code, payload_refusal_text(answer.code), code);
    cr_assert_eq(answer.request, msg->request);
    payload_server_stats(rig.server, &after);
    cr_assert_eq(after.refused, before.refused + 1);
    cr_assert_eq(after.bytes, before.bytes);
}

/* An ask of rank 1 for one sample. */
static struct payload_message ask_for(uint32_t type, uint32_t index, uint64_t offset, uint32_t bytes,
                                      unsigned char *items)
{
    struct payload_message msg = rig_hello(&rig);
    struct payload_extent extent = {.index = index, .bytes = bytes, .offset = offset};

    msg.type = type;
    msg.request = 99;
    msg.step = RIG_STEP;
    msg.plan_id = rig.step.plan_id;
    msg.table_hash = rig.step.table_hash;
    msg.count = 1;
    msg.items = items;
    msg.n_item_bytes = type == PAYLOAD_ASK_DATA ? PAYLOAD_EXTENT_BYTES : 4;
    if (type == PAYLOAD_ASK_DATA)
        payload_put_extent(items, 0, &extent);
    else
        payload_put_index(items, 0, index);
    return msg;
}

Test(transfer, who_is_not_a_member_is_refused)
{
    unsigned char items[PAYLOAD_EXTENT_BYTES];
    struct payload_message answer, msg;
    void *socket;

    begin("stranger", 8, 100, false);
    socket = rig_stranger(&rig);
    msg = ask_for(PAYLOAD_ASK_ENTRIES, 1, 0, 0, items);
    expect_refused(socket, &msg, PAYLOAD_STRANGER); /* no HELLO */
    msg = rig_hello(&rig);
    msg.epoch.lo++;
    expect_refused(socket, &msg, PAYLOAD_STRANGER);
    msg = rig_hello(&rig);
    msg.incarnation.random++;
    expect_refused(socket, &msg, PAYLOAD_STRANGER); /* an older process of that rank, or a guess */
    msg = rig_hello(&rig);
    msg.rank = 2;
    expect_refused(socket, &msg, PAYLOAD_STRANGER); /* with the incarnation of rank 1 */
    msg = rig_hello(&rig);
    msg.rank = 3;
    expect_refused(socket, &msg, PAYLOAD_STRANGER); /* there is none */
    msg = rig_hello(&rig);
    msg.replica = 1;
    expect_refused(socket, &msg, PAYLOAD_STRANGER);
    msg = rig_hello(&rig);
    msg.rank = 0;
    msg.incarnation = rig.server_group.incarnation;
    expect_refused(socket, &msg, PAYLOAD_STRANGER); /* the sender itself */
    msg = rig_hello(&rig);
    cr_assert_eq(rig_ask(&rig, socket, &msg, &answer), PAYLOAD_WELCOME);
    cr_assert(answer.rank == 0 && wire_id_is(answer.epoch, rig.server_group.epoch));
    zmq_close(socket);
    rig_end(&rig);
}

Test(transfer, what_the_plan_does_not_give_is_refused)
{
    unsigned char items[PAYLOAD_EXTENT_BYTES];
    struct payload_message answer, msg;
    void *socket, *second;

    begin("forged", 8, 100, false);
    rig.sent[1 * RIG_FIELDS].present = rig.sent[1 * RIG_FIELDS + 1].present = true; /* sample 1 has bytes for sure */
    socket = rig_stranger(&rig);
    msg = rig_hello(&rig);
    cr_assert_eq(rig_ask(&rig, socket, &msg, &answer), PAYLOAD_WELCOME);

    msg = ask_for(PAYLOAD_ASK_ENTRIES, 2, 0, 0, items); /* it goes to rank 2 */
    expect_refused(socket, &msg, PAYLOAD_NOT_YOURS);
    msg = ask_for(PAYLOAD_ASK_DATA, 2, 0, 1, items);
    expect_refused(socket, &msg, PAYLOAD_NOT_YOURS);
    msg = ask_for(PAYLOAD_ASK_ENTRIES, 8, 0, 0, items); /* there are 8 */
    expect_refused(socket, &msg, PAYLOAD_NOT_YOURS);
    msg = ask_for(PAYLOAD_ASK_DATA, UINT32_MAX, 0, 1, items);
    expect_refused(socket, &msg, PAYLOAD_NOT_YOURS);
    msg = ask_for(PAYLOAD_ASK_DATA, 1, rig.samples[1].bytes, 1, items);
    expect_refused(socket, &msg, PAYLOAD_MALFORMED);
    msg = ask_for(PAYLOAD_ASK_DATA, 1, INT64_MAX, PAYLOAD_PIECE_BYTES, items);
    expect_refused(socket, &msg, PAYLOAD_MALFORMED);
    msg = ask_for(PAYLOAD_ASK_ENTRIES, 1, 0, 0, items);
    msg.step = RIG_STEP - 1;
    expect_refused(socket, &msg, PAYLOAD_STALE);
    msg = ask_for(PAYLOAD_ASK_ENTRIES, 1, 0, 0, items);
    msg.plan_id.hi++;
    expect_refused(socket, &msg, PAYLOAD_OTHER_PLAN);
    msg = ask_for(PAYLOAD_ASK_ENTRIES, 1, 0, 0, items);
    msg.table_hash.lo++;
    expect_refused(socket, &msg, PAYLOAD_OTHER_PLAN);
    msg = ask_for(PAYLOAD_ASK_ENTRIES, 2, 0, 0, items); /* as rank 2, on rank 1's connection */
    msg.rank = 2;
    msg.incarnation = rig.server_group.members[2].incarnation;
    expect_refused(socket, &msg, PAYLOAD_STRANGER);
    msg = ask_for(PAYLOAD_ASK_ENTRIES, 1, 0, 0, items);
    msg.epoch.hi++;
    expect_refused(socket, &msg, PAYLOAD_STRANGER);
    msg = rig_hello(&rig);
    msg.type = PAYLOAD_WELCOME;
    expect_refused(socket, &msg, PAYLOAD_MALFORMED);

    msg = ask_for(PAYLOAD_ASK_ENTRIES, 1, 0, 0, items);
    cr_assert_eq(rig_ask(&rig, socket, &msg, &answer), PAYLOAD_ENTRIES); /* what is right still is */
    second = rig_stranger(&rig); /* the rank is back on another connection: the old one counts no more */
    msg = rig_hello(&rig);
    cr_assert_eq(rig_ask(&rig, second, &msg, &answer), PAYLOAD_WELCOME);
    msg = ask_for(PAYLOAD_ASK_ENTRIES, 1, 0, 0, items);
    expect_refused(socket, &msg, PAYLOAD_STRANGER);
    zmq_close(second);
    zmq_close(socket);
    rig_end(&rig);
}

Test(transfer, more_asks_than_are_kept_are_put_off)
{
    unsigned char items[PAYLOAD_EXTENT_BYTES];
    struct payload_message answer, msg;
    uint32_t n_off = 0;
    void *socket;

    begin("many", 8, 100, false);
    socket = rig_stranger(&rig);
    msg = rig_hello(&rig);
    cr_assert_eq(rig_ask(&rig, socket, &msg, &answer), PAYLOAD_WELCOME);
    rig.step_code = -EAGAIN;
    for (uint32_t i = 0; i < PAYLOAD_CONN_ASKS; i++) {
        msg = ask_for(PAYLOAD_ASK_ENTRIES, 1, 0, 0, items);
        cr_assert_eq(payload_send(socket, NULL, 0, &msg), 0);
    }
    for (uint32_t i = 0; i < 5; i++) { /* answered at once, while the others wait */
        msg = ask_for(PAYLOAD_ASK_ENTRIES, 1, 0, 0, items);
        cr_assert_eq(rig_ask(&rig, socket, &msg, &answer), PAYLOAD_REFUSED);
        n_off += answer.code == PAYLOAD_NOT_YET;
    }
    cr_assert_eq(n_off, 5);
    zmq_close(socket);
    rig_end(&rig);
}

Test(transfer, bytes_that_are_none_are_counted_and_nothing_else)
{
    struct payload_server_stats served;
    unsigned char junk[300];
    void *socket;

    begin("junk", 8, 100, false);
    socket = rig_stranger(&rig);
    for (uint32_t i = 0; i < 200; i++) {
        size_t n = samples_below(&seed, sizeof junk);
        for (size_t b = 0; b < n; b++)
            junk[b] = (unsigned char)samples_random(&seed);
        zmq_send(socket, junk, n, ZMQ_DONTWAIT | (i % 3 == 0 ? ZMQ_SNDMORE : 0)); /* and frames where none belong */
    }
    for (int i = 0; i < 20000; i++) {
        rig_turn_server(&rig);
        payload_server_stats(rig.server, &served);
        if (served.bad >= 130)
            break;
        poll(NULL, 0, 1);
    }
    cr_assert_geq(served.bad, 130);
    fetch_all();
    zmq_close(socket);
    rig_end(&rig);
}

/* An answer that is none, from whoever is at the address: the connection ends, nothing is written. */
Test(transfer, a_sender_that_is_none_is_left_and_named)
{
    char text[TRANSPORT_WAIT_TEXT] = "";

    begin("none", 8, 100, false);
    rig.server_group.incarnation.random++; /* another process has the port now */
    for (int i = 0; i < 20000 && !strstr(text, "another process"); i++) {
        cr_assert_eq(payload_client_entries(rig.client, &rig.pull, &rig.source, &rig.err), -EAGAIN);
        rig_turn(&rig);
        payload_client_waits_for(rig.client, &rig.source, text);
    }
    cr_assert(strstr(text, "what answers there is another process"), "%s", text);
    rig_end(&rig);
}

Test(transfer, entries_that_do_not_fit_the_plan_end_it)
{
    begin("entries", 8, 100, false);
    rig.in_bytes[0]++;
    cr_assert_eq(rig_entries(&rig), -EPROTO);
    cr_assert(rig.err.rank == 0 && rig.err.sample == rig.in_index[0], "%s", rig.err.text);
    rig_end(&rig);
}

/* ------------------------------------------------------------------------------------------------------------- keys */

static void expect_no_handshake(const char *in_note)
{
    char text[TRANSPORT_WAIT_TEXT] = "";

    for (int i = 0; i < 20000 && !strstr(text, "key"); i++) {
        cr_assert_eq(payload_client_entries(rig.client, &rig.pull, &rig.source, &rig.err), -EAGAIN);
        rig_turn(&rig);
        payload_client_waits_for(rig.client, &rig.source, text);
    }
    cr_assert(strstr(text, "payload key") && strstr(text, "rank 0"), "%s", text);
    cr_assert(!in_note || strstr(rig.note, in_note), "'%s' is not in the notice: %s", in_note, rig.note);
    rig_end(&rig);
}

Test(transfer, a_client_key_that_is_not_the_epochs_is_refused_and_named)
{
    begin("client key", 8, 100, true);
    uint8_t secret[WIRE_KEY_BYTES];
    struct payload_key other;
    cr_assert_eq(payload_key_make(secret, &rig.err), 0);
    cr_assert_eq(payload_key_load(secret, &other, &rig.err), 0);
    rig.client_key = other;
    expect_no_handshake(NULL);
}

Test(transfer, a_plain_client_of_an_encrypted_server_is_told_so)
{
    begin("plain client", 8, 100, true);
    rig.client_group.key = NULL;
    char text[TRANSPORT_WAIT_TEXT] = "";
    for (int i = 0; i < 20000 && !strstr(text, "encryption"); i++) {
        payload_client_entries(rig.client, &rig.pull, &rig.source, &rig.err);
        rig_turn(&rig);
        payload_client_waits_for(rig.client, &rig.source, text);
    }
    cr_assert(strstr(text, "asks for encryption"), "%s", text);
    cr_assert(strstr(rig.note, "rank 0 at tcp://"), "%s", rig.note);
    rig_end(&rig);
}

Test(transfer, an_encrypting_client_of_a_plain_server_is_told_so)
{
    begin("plain server", 8, 100, false);
    uint8_t secret[WIRE_KEY_BYTES];
    cr_assert_eq(payload_key_make(secret, &rig.err), 0);
    cr_assert_eq(payload_key_load(secret, &rig.client_key, &rig.err), 0);
    rig.client_group.key = &rig.client_key;
    expect_no_handshake(NULL);
}

/* Whoever knows the public half still is not let in: the server's own ZAP handler wants the very key. */
Test(transfer, the_zap_handler_admits_that_very_key_only)
{
    begin("zap", 8, 100, true);
    uint8_t secret[WIRE_KEY_BYTES];
    struct payload_key other;
    void *socket = zmq_socket(rig.client_group.zmq, ZMQ_DEALER);
    cr_assert_eq(payload_key_make(secret, &rig.err), 0);
    cr_assert_eq(payload_key_load(secret, &other, &rig.err), 0);
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, rig.server_key.public, WIRE_KEY_BYTES);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, other.public, WIRE_KEY_BYTES);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, other.secret, WIRE_KEY_BYTES);
    zmq_setsockopt(socket, ZMQ_LINGER, &(int){0}, sizeof(int));
    zmq_connect(socket, rig.endpoint);
    for (int i = 0; i < 20000 && rig.refused_keys == 0; i++) {
        rig_turn_server(&rig);
        poll(NULL, 0, 1);
    }
    cr_assert_gt(rig.refused_keys, 0);
    zmq_close(socket);
    rig_end(&rig);
}
