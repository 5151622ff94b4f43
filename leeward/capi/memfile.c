#include "memfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"

/* Map *fd* read-only, if it is sealed and has exactly *size* bytes. Returns NULL, or what is wrong.
 *
 * A file that can still shrink could end the process by SIGBUS, and one that can still be written could change while it
 * is read. So size and seals are asked of the kernel. */
static const char *map_one(int fd, size_t size, struct lw_mapping *ret_mapping)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat about;
	void *start;

	if (seals < 0)
		return "the daemon sent a descriptor that is no memory file";
	if ((seals & wanted) != wanted)
		return "the daemon sent a memory file that isn't sealed";
	if (fstat(fd, &about) || about.st_size < 0 || (uint64_t)about.st_size != size)
		return "the daemon sent a memory file of another size than it announced";
	start = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (start == MAP_FAILED)
		return "a result can't be mapped: this process has no room for it";
	*ret_mapping = (struct lw_mapping){start, size};
	return NULL;
}

/* Remove the first *count* descriptors from the queue without closing them. */
static void shift_descriptors(struct lw_link *link, size_t count)
{
	link->descriptor_count -= count;
	memmove(link->descriptors, link->descriptors + count, link->descriptor_count * sizeof *link->descriptors);
}

/* Map the memory files that *reply* announces; their descriptors are the first of the queue. Returns a leeward_error. */
int lw_memfile_map(struct lw_link *link, const struct lw_reply *reply, struct lw_mapping ret_mappings[LW_MAX_ARENAS])
{
	struct lw_mapping mappings[LW_MAX_ARENAS] = {{NULL, 0}};
	const char *wrong = NULL;

	if (link->descriptor_count < reply->arena_count)
		wrong = "the daemon broke the protocol: a memory file that was announced didn't come";
	for (size_t i = 0; !wrong && i < reply->arena_count; i++)
		wrong = map_one(link->descriptors[i], reply->arenas[i], &mappings[i]);
	if (wrong) {
		lw_unmap(mappings);
		return lw_fail(LEEWARD_BAD_REPLY, "%s", wrong);
	}
	for (size_t i = 0; i < reply->arena_count; i++)
		close(link->descriptors[i]);
	shift_descriptors(link, reply->arena_count);
	memcpy(ret_mappings, mappings, sizeof mappings);
	return LEEWARD_OK;
}

/* Take the socket that came with *reply*; the caller closes it. Returns what is wrong with it, or NULL. */
const char *lw_dock_take(struct lw_link *link, const struct lw_reply *reply, int *ret_socket)
{
	struct stat about;
	struct lw_value flag;

	if (!lw_find(&reply->ok, "socket", &flag) || flag.type != LW_BOOL || !flag.boolean || reply->arena_count)
		return "an invalid dock";
	if (!link->descriptor_count)
		return "a socket that was announced didn't come";
	if (fstat(link->descriptors[0], &about) || !S_ISSOCK(about.st_mode))
		return "a dock that isn't a socket";
	*ret_socket = link->descriptors[0];
	shift_descriptors(link, 1);
	return NULL;
}

/* Take the arena that came with *reply*. Returns what is wrong with it, or NULL.
 *
 * The library only writes it, by pwrite(2), so it needs no more trust than a socket. */
const char *lw_arena_take(struct lw_link *link, const struct lw_reply *reply)
{
	struct lw_value count, size;
	struct stat about;
	int seals;

	lw_find(&reply->ok, "slots", &count);
	lw_find(&reply->ok, "size", &size);
	if (count.type != LW_INTEGER || count.integer < 1 || count.integer > LW_MAX_SLOTS || size.type != LW_INTEGER ||
	    size.integer < 1 || size.integer > LW_MAX_SLOT || reply->arena_count != 1 ||
	    (int64_t)reply->arenas[0] / size.integer != count.integer || (int64_t)reply->arenas[0] % size.integer)
		return "an invalid arena";
	if (!link->descriptor_count)
		return "a memory file that was announced didn't come";
	seals = fcntl(link->descriptors[0], F_GET_SEALS);
	if (link->arena.fd >= 0 || seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(link->descriptors[0], &about) ||
	    about.st_size < 0 || (uint64_t)about.st_size != reply->arenas[0])
		return "an arena with an invalid file";
	link->arena = (struct lw_arena){link->descriptors[0], (size_t)count.integer, (size_t)size.integer, 0, true};
	shift_descriptors(link, 1);
	return NULL;
}

/* Write a request into a free slot. Returns the slot; -1 if there is none, or the request doesn't fit. */
int lw_arena_put(struct lw_link *link, const uint8_t *payload, size_t length)
{
	struct lw_arena *arena = &link->arena;
	size_t done = 0;
	int slot = 0;

	if (arena->fd < 0 || length > arena->size)
		return -1;
	while ((size_t)slot < arena->count && arena->taken >> slot & 1)
		slot++;
	if ((size_t)slot == arena->count)
		return -1;
	while (done < length) {
		ssize_t step = pwrite(arena->fd, payload + done, length - done, (off_t)((size_t)slot * arena->size + done));

		if (step < 0 && errno == EINTR)
			continue;
		if (step <= 0)
			return -1; /* the host has no memory for the whole request; the socket takes it in pieces */
		done += (size_t)step;
	}
	arena->taken |= UINT64_C(1) << slot;
	return slot;
}

/* Free a slot whose request was answered. Does nothing for -1. */
void lw_arena_free_slot(struct lw_link *link, int slot)
{
	if (slot >= 0)
		link->arena.taken &= ~(UINT64_C(1) << slot);
}
