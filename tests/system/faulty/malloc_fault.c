/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded by test_alloc_faults.sh: the POISE_FAULT_AT-th allocation of one object (POISE_FAULT_OBJECT: a part of its path)
 * fails, and with POISE_FAULT_REPEAT each one after it, so many. Only that object's own calls count: libzmq aborts where
 * memory is short, which is its way and not what is looked at. At the end the number of calls is written to
 * POISE_FAULT_COUNT.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *block, size_t n);

static uintptr_t begin, end; /* of the object; 0: nothing is counted */
static long at = -1, repeat = 1;
static atomic_long n_calls;

static int find(struct dl_phdr_info *info, size_t size, void *name)
{
    char self[4096];
    const char *path = info->dlpi_name;
    (void)size;
    if (!path[0]) { /* the program itself */
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        self[n < 0 ? 0 : n] = 0;
        path = self;
    }
    const char *base = strrchr(path, '/');
    if (strncmp(base ? base + 1 : path, name, strlen(name)) != 0)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
            begin = info->dlpi_addr + part->p_vaddr;
            end = begin + part->p_memsz;
        }
    }
    return 1;
}

__attribute__((constructor)) static void start(void)
{
    char *object = getenv("POISE_FAULT_OBJECT"), *text = getenv("POISE_FAULT_AT");

    if (text)
        at = strtol(text, NULL, 10);
    if ((text = getenv("POISE_FAULT_REPEAT")))
        repeat = strtol(text, NULL, 10);
    if (object)
        dl_iterate_phdr(find, object);
}

__attribute__((destructor)) static void finish(void)
{
    const char *path = getenv("POISE_FAULT_COUNT");
    FILE *file = begin && path ? fopen(path, "we") : NULL;

    if (file) {
        fprintf(file, "%ld\n", atomic_load(&n_calls));
        fclose(file);
    }
}

static bool fails(const void *caller)
{
    if ((uintptr_t)caller < begin || (uintptr_t)caller >= end)
        return false;
    long n = atomic_fetch_add(&n_calls, 1);
    if (at < 0 || n < at || n >= at + repeat)
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *block, size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(block, n);
}
