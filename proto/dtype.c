/* SPDX-License-Identifier: Apache-2.0 */
/* The table of element types. Public functions; here because schema checks need them and every side links proto/. */
#include <stddef.h>

#include "poise.h"

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[POISE_N_DTYPES] = {
    [POISE_BYTES] = {"bytes", 1},        [POISE_BOOL] = {"bool", 1},
    [POISE_U8] = {"uint8", 1},           [POISE_I8] = {"int8", 1},
    [POISE_U16] = {"uint16", 2},         [POISE_I16] = {"int16", 2},
    [POISE_U32] = {"uint32", 4},         [POISE_I32] = {"int32", 4},
    [POISE_U64] = {"uint64", 8},         [POISE_I64] = {"int64", 8},
    [POISE_F16] = {"float16", 2},        [POISE_BF16] = {"bfloat16", 2},
    [POISE_F32] = {"float32", 4},        [POISE_F64] = {"float64", 8},
    [POISE_F8E4M3] = {"float8_e4m3", 1}, [POISE_F8E5M2] = {"float8_e5m2", 1},
    [POISE_C64] = {"complex64", 8},      [POISE_C128] = {"complex128", 16},
};

const char *poise_dtype_name(uint32_t dtype)
{
    return dtype < POISE_N_DTYPES ? dtypes[dtype].name : NULL;
}

uint32_t poise_dtype_bytes(uint32_t dtype)
{
    return dtype < POISE_N_DTYPES ? dtypes[dtype].bytes : 0;
}
