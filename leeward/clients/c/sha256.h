/* SHA-256, FIPS 180-4. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define LW_DIGEST 32

struct lw_sha256 {
	uint32_t state[8];
	uint64_t length; /* of what was added, in bytes */
	uint8_t block[64];
};

void lw_sha256_begin(struct lw_sha256 *hash);
void lw_sha256_add(struct lw_sha256 *hash, const void *data, size_t length);
void lw_sha256_end(struct lw_sha256 *hash, uint8_t ret_digest[LW_DIGEST]);
