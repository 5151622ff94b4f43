#include "sha256.h"

#include <string.h>

static const uint32_t ROUND[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turned(uint32_t word, int bits)
{
	return word >> bits | word << (32 - bits);
}

static void add_block(struct lw_sha256 *hash, const uint8_t *block)
{
	uint32_t words[64], at[8];

	for (int i = 0; i < 16; i++)
		words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
			   block[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		const uint32_t a = words[i - 15], b = words[i - 2];
		words[i] = words[i - 16] + words[i - 7] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) +
			   (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
	}
	memcpy(at, hash->state, sizeof at);
	for (int i = 0; i < 64; i++) {
		const uint32_t a = at[0], e = at[4];
		const uint32_t one = at[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & at[5]) ^ (~e & at[6])) +
				     ROUND[i] + words[i];
		const uint32_t other = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & at[1]) ^ (a & at[2]) ^ (at[1] & at[2]));
		memmove(at + 1, at, 7 * sizeof *at);
		at[4] += one;
		at[0] = one + other;
	}
	for (int i = 0; i < 8; i++)
		hash->state[i] += at[i];
}

void lw_sha256_begin(struct lw_sha256 *hash)
{
	static const uint32_t FIRST[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

	memcpy(hash->state, FIRST, sizeof FIRST);
	hash->length = 0;
}

void lw_sha256_add(struct lw_sha256 *hash, const void *data, size_t length)
{
	const uint8_t *from = data;
	size_t held = hash->length % sizeof hash->block;

	hash->length += length;
	while (length) {
		const size_t room = sizeof hash->block - held, some = length < room ? length : room;
		if (some == sizeof hash->block) {
			add_block(hash, from);
		} else {
			memcpy(hash->block + held, from, some);
			held = (held + some) % sizeof hash->block;
			if (!held)
				add_block(hash, hash->block);
		}
		from += some;
		length -= some;
	}
}

void lw_sha256_end(struct lw_sha256 *hash, uint8_t ret_digest[LW_DIGEST])
{
	const uint64_t bits = hash->length * 8;
	uint8_t end[8];

	lw_sha256_add(hash, "\x80", 1);
	while (hash->length % sizeof hash->block != 56)
		lw_sha256_add(hash, "", 1);
	for (int i = 0; i < 8; i++)
		end[i] = (uint8_t)(bits >> (56 - 8 * i));
	lw_sha256_add(hash, end, sizeof end);
	for (int i = 0; i < LW_DIGEST; i++)
		ret_digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}
