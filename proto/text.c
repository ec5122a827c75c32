/* SPDX-License-Identifier: Apache-2.0 */
/* Valid UTF-8: texts of other processes end up in JSON, in Python strings and on terminals, which refuse or misread
 * others. */
#include "proto/codec.h"

/* Length of the valid character at s, 0 if there is none. No overlong forms, no surrogates, nothing above U+10FFFF. */
static size_t character(const unsigned char *s, size_t n)
{
    static const struct {
        unsigned char first, last, min, max; /* range of the first byte, of the second */
        size_t bytes;
    } forms[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
        {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };

    if (s[0] < 0x80)
        return s[0] != 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (s[0] < forms[i].first || s[0] > forms[i].last)
            continue;
        if (n < forms[i].bytes || s[1] < forms[i].min || s[1] > forms[i].max)
            return 0;
        for (size_t k = 2; k < forms[i].bytes; k++)
            if ((s[k] & 0xc0) != 0x80)
                return 0;
        return forms[i].bytes;
    }
    return 0;
}

bool wire_text_valid(const char *text, size_t n)
{
    for (size_t i = 0, bytes; i < n; i += bytes) {
        bytes = character((const unsigned char *)text + i, n - i);
        if (bytes == 0)
            return false;
    }
    return true;
}

void wire_text_mend(char *text, size_t n)
{
    for (size_t i = 0, bytes; i < n; i += bytes) {
        bytes = character((const unsigned char *)text + i, n - i);
        if (bytes == 0) {
            text[i] = '?';
            bytes = 1;
        }
    }
}
