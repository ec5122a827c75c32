/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork() copies a handle without its engine: the copy can do nothing, and it must not keep alive what tells others that
 * the parent died. So in the child every descriptor of the parent's handles is closed, their memory is not there (it
 * was never inherited), and every call with such a handle is -EPERM, told by a count of forks that handles and batches
 * remember.
 *
 * Trainers fork for data-loader workers while other threads hold locks: nothing here takes a lock that the child could
 * find held, but the list's own, which is taken across the fork.
 */
#include "client/forks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/err.h"

struct fork_entry {
    struct poise *object;
    void (*child)(struct poise *object);
    struct fork_entry *next;
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fork_entry *list, *inherited; /* inherited: of a parent, kept so that leak checkers find it */
static bool registered;
static atomic_uint generation;

static void before(void)
{
    pthread_mutex_lock(&list_lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&list_lock);
}

/* The entries are never freed in the child: free() is not for a child of a process with threads. */
static void in_child(void)
{
    atomic_fetch_add(&generation, 1);
    for (struct fork_entry *entry = list; entry; entry = entry->next)
        entry->child(entry->object);
    if (list)
        inherited = list; /* its end is not linked to an older one: two generations of handles in a row are rare */
    list = NULL;
    pthread_mutex_unlock(&list_lock);
}

uint32_t forks_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

int forks_add(struct poise *object, void (*child)(struct poise *object), struct poise_err *err)
{
    struct fork_entry *entry = malloc(sizeof *entry);
    int rc = 0;

    if (!entry)
        return err_set(err, -ENOMEM, "no memory for the handle");
    pthread_mutex_lock(&list_lock);
    if (!registered)
        rc = pthread_atfork(before, in_parent, in_child);
    if (rc == 0) {
        registered = true;
        *entry = (struct fork_entry){.object = object, .child = child, .next = list};
        list = entry;
    }
    pthread_mutex_unlock(&list_lock);
    if (rc) {
        free(entry);
        return err_set(err, -rc, "pthread_atfork: %s", strerror(rc));
    }
    return 0;
}

void forks_remove(struct poise *object)
{
    struct fork_entry **at = &list, *found = NULL;

    pthread_mutex_lock(&list_lock);
    while (*at && (*at)->object != object)
        at = &(*at)->next;
    if (*at) {
        found = *at;
        *at = found->next;
    }
    pthread_mutex_unlock(&list_lock);
    free(found);
}
