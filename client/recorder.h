/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a record (proto/record.h) of what each step's outcome was made of: rank 0's, replica 0. The engine brings
 * outcomes and metadata as they come and never waits; a thread of the recorder's own encodes and writes. Whatever goes
 * wrong ends the recording, not the training, and is told once.
 */
#ifndef POISE_CLIENT_RECORDER_H
#define POISE_CLIENT_RECORDER_H

#include "proto/wire.h"

#define RECORDER_DEFAULT_BYTES (UINT64_C(1) << 30)
#define RECORDER_MIN_BYTES (UINT64_C(64) << 10) /* the group with all its options and some steps */
#define RECORDER_TEXT 400

struct recorder;

/*
 * Makes the file, which must not exist yet or be empty, and starts the thread. join: this process's; copied. max_bytes:
 * of the whole file. *ret_recorder: recorder_close(). Errors, naming the path: -EEXIST it holds something, -EBUSY
 * another process writes it, -EACCES and the like, -ENOMEM.
 */
int recorder_new(const char *path, uint64_t max_bytes, const struct wire_join *join, struct recorder **ret_recorder,
                 struct poise_err *err);

/* An outcome was taken; steps come in order. Copies what is recorded of it. */
void recorder_outcome(struct recorder *recorder, const struct wire_outcome *outcome, uint64_t now_ms);

/* Metadata of all ranks of a step: takes msg. */
void recorder_metas(struct recorder *recorder, struct wire_message *msg);

/* Hands complete steps to the thread, and those that will never be complete. True: the metadata of *ret_step is to be
 * asked for (again). ret_step NULL: nobody can be asked now. */
bool recorder_turn(struct recorder *recorder, uint64_t now_ms, uint64_t *ret_step);

/* Whether the metadata of a step that was decided within the last patience_ms is awaited. */
bool recorder_waits(const struct recorder *recorder, uint64_t now_ms, uint64_t patience_ms);

/* Something ended the recording: true once, with its severity (POISE_WARNING, POISE_ERROR) and step. */
bool recorder_note(struct recorder *recorder, uint32_t *ret_severity, uint64_t *ret_step, char ret_text[RECORDER_TEXT]);

/* Writes what is left, at most timeout_ms, and ends the thread. A file that nothing was written to is removed. NULL is
 * allowed. */
void recorder_close(struct recorder *recorder, uint64_t timeout_ms);

#endif
