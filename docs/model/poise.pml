/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epochs, outcomes and pulls, small enough to be searched whole: two ranks, each on a node of its own that only passes on,
 * two coordinators that are killed and forget all, and a rank that dies and comes back with other data. `make model` checks
 * it, and that each mutant is caught. README.md beside this file maps it to the code.
 *
 * A step's metadata is one bit a rank (what it submitted), its outcome both bits. W is 2 and not 8. A message is not a thing here
 * but an action that may be done at any time, again, or never: late, doubled, overtaken and lost are the same choice. So
 * is time: whatever a timer would do may happen at any moment, and in the end (calm) all of them have done it.
 *
 * Asserted: a step has one outcome, whoever decides it; it holds what the ranks submitted; a rank takes no outcome of
 * another epoch; and from every state that the storm can lead to, quiet weather brings both ranks to the end of the data.
 */
#ifndef STEPS
#define STEPS 3 /* W + 1: a rank forgets, while the other is a whole window behind. 2 where a rank dies */
#endif
#define W 2
#ifdef MUTANT_SLOTS
#define SLOTS W
#else
#define SLOTS (2 * W) /* EPOCH_SLOTS */
#endif
#define NONE 255
#define AT(x, s) ((x) * STEPS + (s))

/* A rank: client/ledger.c, client/session.c */
byte epoch_of[2];    /* 0: in none. Epoch 1 is of first incarnations, 2 of one that came back: ids are hashes of incarnations */
byte incarnation[2];
byte submitted[2];   /* ledger_next_submit() */
byte decided[2];     /* ledger_next_decide() */
bool over[2];        /* told that its epoch is over */

/* A coordinator: daemon/core/group.c, steps.c */
byte runs[2];             /* the epoch that runs there; 0: none is known */
byte claims[2];           /* bits of the ranks that joined since it started */
byte here[2 * STEPS];     /* bits of the ranks whose metadata is here */
byte said[2 * STEPS];     /* and what it says */
byte decision[2 * STEPS]; /* NONE: undecided */
byte highest[2];          /* highest step here, plus 1 */

/* Not known to anyone */
byte kills;
bool died;           /* one rank did */
bool ended[3];       /* epochs of which a member is proven gone */
byte truth[3 * STEPS]; /* the first outcome of a step of an epoch that anyone made */

#define CONTENT(r, s) ((incarnation[r] + (r) + (s)) % 2)
#ifdef MUTANT_REWRITE /* asked again after a kill, a rank says something else: not write-once */
#define SAYS(r, s) ((CONTENT(r, s) + kills) % 2)
#else
#define SAYS(r, s) CONTENT(r, s)
#endif

/* ledger_decide() forgets step s when some t >= s + W is decided. */
#if defined(MUTANT_FORGET_EARLY)
#define REMEMBERS(r, s) ((s) < submitted[r] && decided[r] < (s) + W)
#elif defined(MUTANT_ANSWER_UNDECIDED)
#define REMEMBERS(r, s) ((s) < submitted[r] && decided[r] <= (s))
#else
#define REMEMBERS(r, s) ((s) < submitted[r] && decided[r] <= (s) + W)
#endif
#ifdef MUTANT_DECIDE_PARTIAL /* a deadline as an outcome */
#define COMPLETE(c, s) (here[AT(c, s)] != 0)
#else
#define COMPLETE(c, s) (here[AT(c, s)] == 3)
#endif
#ifdef MUTANT_IMPURE /* something that the ranks did not say: a clock, a random number, a history */
#define OUTCOME(c, s) (said[AT(c, s)] + 4 * (c))
#else
#define OUTCOME(c, s) said[AT(c, s)]
#endif
#ifdef MUTANT_NO_EPOCH
#define SAME_EPOCH(r, c) (runs[c] != 0)
#else
#define SAME_EPOCH(r, c) (runs[c] == epoch_of[r])
#endif
#ifdef MUTANT_ONE_COORDINATOR /* a node speaks to one of the list */
#define SPEAKS_TO(r, c) ((r) == (c))
#else
#define SPEAKS_TO(r, c) true
#endif

/* coordinator_free() and coordinator_new(); also the end of an epoch there */
inline forget(c) {
    runs[c] = 0; claims[c] = 0; highest[c] = 0;
    k = 0;
    do
    :: k < STEPS -> here[AT(c, k)] = 0; said[AT(c, k)] = 0; decision[AT(c, k)] = NONE; k++
    :: else -> break
    od;
    k = 0
}

/* group_members(), join_new(), join_claim(), start_forming(), start_claims(): an epoch runs when all members are here and want a new
 * one; or when all claim the same, where who waits for a new one may stand in if the hash says so (stand_in()): its roster
 * was lost with the coordinator. */
#define ID_OF_ALL (incarnation[0] + incarnation[1] > 2 -> 2 : 1)
#ifdef MUTANT_HALF_BEGUN
#define AGREE (epoch_of[0] == epoch_of[1])
#else
#define AGREE (epoch_of[0] == epoch_of[1] || \
               ((epoch_of[0] == 0 || epoch_of[1] == 0) && epoch_of[0] + epoch_of[1] == ID_OF_ALL))
#endif
inline join(r, c) {
    if
    :: runs[c] == 0 && !over[r] && SPEAKS_TO(r, c) ->
        claims[c] = claims[c] | (1 << r);
        if
        :: (claims[c] == 3 || !SPEAKS_TO(0, c) || !SPEAKS_TO(1, c)) && AGREE ->
            runs[c] = (epoch_of[0] + epoch_of[1] != 0 -> (epoch_of[0] > epoch_of[1] -> epoch_of[0] : epoch_of[1]) : ID_OF_ALL)
        :: else -> skip
        fi
    :: else -> skip
    fi
}

/* node_on_roster(): who waits for an epoch is in it. object(): not if that one is over for a member already. */
inline roster(r, c) {
    if
    :: runs[c] != 0 && epoch_of[r] == 0 && !over[r] && !ended[runs[c]] && (runs[c] == 2 || incarnation[r] == 1) ->
        epoch_of[r] = runs[c]
    :: else -> skip
    fi
}

/* poise_submit(), ledger_may_submit() */
inline submit(r) {
    if
    :: epoch_of[r] != 0 && !over[r] && submitted[r] < STEPS && submitted[r] < decided[r] + W -> submitted[r]++
    :: else -> skip
    fi
}

/* node_on_meta(), epoch_meta(); by itself or because of epoch_need(), node_on_need(), ledger_meta() */
inline meta(r, c, s) {
    if
    :: runs[c] != 0 && runs[c] == epoch_of[r] && SPEAKS_TO(r, c) && REMEMBERS(r, s) && s + SLOTS >= highest[c] &&
       (here[AT(c, s)] & (1 << r)) == 0 ->
        here[AT(c, s)] = here[AT(c, s)] | (1 << r);
        said[AT(c, s)] = said[AT(c, s)] | (SAYS(r, s) << r);
        highest[c] = (s + 1 > highest[c] -> s + 1 : highest[c])
    :: else -> skip
    fi
}

/* group_settle() after each message: epoch_decide(), outcome_make() */
inline decide(c, s) {
    if
    :: runs[c] != 0 && COMPLETE(c, s) && decision[AT(c, s)] == NONE ->
        decision[AT(c, s)] = OUTCOME(c, s);
        if
        :: truth[AT(runs[c], s)] == NONE -> truth[AT(runs[c], s)] = decision[AT(c, s)]
        :: else -> assert(truth[AT(runs[c], s)] == decision[AT(c, s)]) /* pure */
        fi
    :: else -> skip
    fi
}

/* node_on_outcome(), ledger_decide(): the next step's; by itself or because of node_on_beacon(), node_on_pull(), epoch_pull() */
inline outcome(r, c) {
    if
    :: epoch_of[r] != 0 && !over[r] && decided[r] < submitted[r] && SAME_EPOCH(r, c) &&
       decision[AT(c, decided[r])] != NONE ->
        assert(decision[AT(c, decided[r])] == truth[AT(epoch_of[r], decided[r])]); /* one decision a step */
        assert(((decision[AT(c, decided[r])] >> r) & 1) == CONTENT(r, decided[r])); /* conserved */
        decided[r]++
    :: else -> skip
    fi
}

/* node_on_session_end(): the only proof here that an epoch is over */
inline die(r) {
    ended[epoch_of[r]] = true;
    died = true;
    over[r] = true
}

/* local_epoch_end(), tell_links(), group_abort(): told until it is echoed */
inline told(r) {
#ifndef MUTANT_NOT_TOLD
    if
    :: epoch_of[r] != 0 && ended[epoch_of[r]] -> over[r] = true
    :: else -> skip
    fi
#else
    skip
#endif
}

inline abort_at(c) {
    if
    :: runs[c] != 0 && ended[runs[c]] -> forget(c)
    :: else -> skip
    fi
}

/* A new process, or a survivor that opens again: a higher incarnation that is in no epoch. */
inline reopen(r) {
    if
    :: died && over[r] && incarnation[r] == 1 ->
        incarnation[r] = 2; over[r] = false; submitted[r] = 0; decided[r] = 0;
#ifndef MUTANT_JOINS_TWICE
        epoch_of[r] = 0
#endif
    :: else -> skip
    fi
}

#define RC(r, c) submit(r); join(r, c); roster(r, c); outcome(r, c)
#define ALL_STEPS(c) \
    k = 0; \
    do \
    :: k < STEPS -> meta(0, c, k); meta(1, c, k); decide(c, k); k++ \
    :: else -> break \
    od; \
    k = 0

active proctype world() {
    byte k = 0, n = 0;

    d_step {
        incarnation[0] = 1; incarnation[1] = 1;
        do
        :: k < 3 * STEPS -> truth[k] = NONE; k++
        :: else -> break
        od;
        forget(0); forget(1)
    }
    do /* the storm: anything, in any order */
    :: d_step { join(0, 0) }
    :: d_step { join(0, 1) }
    :: d_step { join(1, 0) }
    :: d_step { join(1, 1) }
    :: d_step { roster(0, 0) }
    :: d_step { roster(0, 1) }
    :: d_step { roster(1, 0) }
    :: d_step { roster(1, 1) }
    :: d_step { submit(0) }
    :: d_step { submit(1) }
    :: d_step { meta(0, 0, 0); decide(0, 0) }
    :: d_step { meta(0, 0, 1); decide(0, 1) }
#if STEPS > 2
    :: d_step { meta(0, 0, 2); decide(0, 2) }
#endif
    :: d_step { meta(0, 1, 0); decide(1, 0) }
    :: d_step { meta(0, 1, 1); decide(1, 1) }
#if STEPS > 2
    :: d_step { meta(0, 1, 2); decide(1, 2) }
#endif
    :: d_step { meta(1, 0, 0); decide(0, 0) }
    :: d_step { meta(1, 0, 1); decide(0, 1) }
#if STEPS > 2
    :: d_step { meta(1, 0, 2); decide(0, 2) }
#endif
    :: d_step { meta(1, 1, 0); decide(1, 0) }
    :: d_step { meta(1, 1, 1); decide(1, 1) }
#if STEPS > 2
    :: d_step { meta(1, 1, 2); decide(1, 2) }
#endif
    :: d_step { outcome(0, 0) }
    :: d_step { outcome(0, 1) }
    :: d_step { outcome(1, 0) }
    :: d_step { outcome(1, 1) }
    :: d_step { kills < KILLS -> kills++; forget(0) }
    :: d_step { kills < KILLS -> kills++; forget(1) }
    :: d_step { RANK_DIES && !died && epoch_of[0] == 1 && !over[0] -> die(0) }
    :: d_step { RANK_DIES && !died && epoch_of[1] == 1 && !over[1] -> die(1) }
    :: d_step { RANK_DIES && died -> told(0) }
    :: d_step { RANK_DIES && died -> told(1) }
    :: d_step { RANK_DIES && died -> abort_at(0) }
    :: d_step { RANK_DIES && died -> abort_at(1) }
    :: d_step { RANK_DIES && died -> reopen(0) }
    :: d_step { RANK_DIES && died -> reopen(1) }
    :: break
    od;
    skip;
    d_step { /* the calm: every timer has repeated what is missing, often enough */
        do
        :: n < 4 * STEPS ->
            told(0); told(1); abort_at(0); abort_at(1); reopen(0); reopen(1);
            RC(0, 0); RC(0, 1); RC(1, 0); RC(1, 1);
            ALL_STEPS(0); ALL_STEPS(1);
            n++
        :: else -> break
        od;
        assert(decided[0] == STEPS && decided[1] == STEPS) /* no hang, whatever the storm did */
    }
}
