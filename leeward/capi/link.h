/* A connection: a socket, the bytes of a frame that has begun, descriptors in order, an arena.
 *
 * Runs in:   libleeward and the command line.
 * Waits:     in lw_link_connect, 5 s at most, and in lw_link_wait as long as it is told.
 *            All the rest takes what is there. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire.h"

/* Seconds that a connection may take, which a full backlog makes wait. */
#define LW_CONNECT_S 5
/* Seconds of silence before the library asks whether the daemon lives. */
#define LW_PATIENCE_S 10.0
/* Descriptors that one read can bring, and that may wait for their frame. */
#define LW_MAX_DESCRIPTORS 16

/* Bytes from which on a request goes by the arena; as leeward/client/slots.py has it, a test compares. */
#define LW_LARGE ((size_t)1 << 20)
/* What no sensible daemon goes beyond. */
#define LW_MAX_SLOTS 64
#define LW_MAX_SLOT ((int64_t)1 << 30)

/* The memory file for large requests that the daemon gave to a connection. */
struct lw_arena {
	int fd; /* -1: none */
	size_t count, size;
	uint64_t taken; /* slots with requests that have no answer yet */
	bool asked;
};

struct lw_link {
	char *path;
	int fd; /* -1: none */
	pid_t owner; /* who connected: after a fork the connection stays the parent's */
	uint8_t *data; /* received, not yet taken */
	size_t length, capacity;
	int descriptors[2 * LW_MAX_DESCRIPTORS];
	size_t descriptor_count;
	struct lw_arena arena;
};

double lw_now(void);
double lw_earlier(double one, double other);
int lw_link_open(struct lw_link *link, const char *path);
void lw_link_close(struct lw_link *link);
void lw_link_free(struct lw_link *link);
int lw_link_connect(struct lw_link *link);
int lw_link_away(const struct lw_link *link, const char *reason);
int lw_link_silent(const struct lw_link *link, const char *before, const char *after);
ssize_t lw_link_send(struct lw_link *link, const uint8_t *data, size_t length);
ssize_t lw_link_receive(struct lw_link *link, bool wait);
int lw_link_wait(struct lw_link *link, short events, double seconds, const sigset_t *mask);
int lw_link_take(struct lw_link *link, uint8_t **ret_block, size_t *ret_length);
