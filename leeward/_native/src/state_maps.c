/* Reads what the kernel says of this process's memory, without the C library. Runs in: the job. */

#include "state_private.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* Whether states can be dumped and loaded on this processor. */
bool lw_state_known(void)
{
#if defined(__x86_64__)
	return true;
#else
	return false;
#endif
}

/* Read a file of /proc. Returns its bytes, or -errno; -E2BIG if it doesn't fit. */
UNCHECKED long read_all(const char *path, char *into, size_t size)
{
	const long file = raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0);
	size_t got = 0;
	long some = file;

	while (some >= 0 && got < size && (some = raw(SYS_read, file, (long)(into + got), (long)(size - got), 0, 0)) > 0)
		got += (size_t)some;
	if (file >= 0)
		raw(SYS_close, file, 0, 0, 0, 0);
	return some < 0 ? some : got == size ? -7 /* E2BIG */ : (long)got;
}

UNCHECKED static uint64_t number(const char **at, unsigned base)
{
	uint64_t value = 0;

	for (;; (*at)++) {
		const char c = **at;
		const unsigned digit = c >= '0' && c <= '9' ? (unsigned)(c - '0') :
				       c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10) : 99;
		if (digit >= base)
			return value;
		value = value * base + digit;
	}
}

UNCHECKED static int begins(const char *at, const char *end, const char *with)
{
	for (; *with; at++, with++)
		if (at >= end || *at != *with)
			return 0;
	return 1;
}

UNCHECKED static const char *after_spaces(const char *at)
{
	while (*at == ' ')
		at++;
	return at;
}

/* The next mapping in the text of maps or smaps from *at* to *end*, which has a NUL behind it. Returns where to go on;
 * NULL if there is none. */
UNCHECKED const char *next_mapping(const char *at, const char *end, struct mapping *ret)
{
	if (at >= end)
		return NULL;
	ret->start = number(&at, 16);
	at++;
	ret->end = number(&at, 16);
	at++;
	ret->protection = (at[0] == 'r' ? PROT_READ : 0U) | (at[1] == 'w' ? PROT_WRITE : 0U) | (at[2] == 'x' ? PROT_EXEC : 0U);
	ret->shared = at[3] == 's';
	at += 5;
	ret->offset = number(&at, 16);
	at++;
	number(&at, 16); /* the device, major and minor */
	at++;
	number(&at, 16);
	at++;
	ret->inode = number(&at, 10);
	at = after_spaces(at);
	ret->name = at;
	while (at < end && *at != '\n')
		at++;
	ret->length = (uint32_t)(at - ret->name);
	ret->touched = 0;
	ret->flags = 0;
	for (at++; at < end && *at >= 'A' && *at <= 'Z';) { /* a mapping begins with a digit or a small letter */
		const char *value = after_spaces(at);
		if (begins(at, end, "Anonymous:")) {
			value = after_spaces(at + 10);
			ret->touched += number(&value, 10) << 10;
		} else if (begins(at, end, "Swap:")) {
			value = after_spaces(at + 5);
			ret->touched += number(&value, 10) << 10;
		} else if (begins(at, end, "VmFlags:")) {
			for (value = at + 8; value + 2 < end && *value != '\n'; value++)
				if (value[0] == ' ' && value[1] == 'g' && value[2] == 'd')
					ret->flags |= GROWS_DOWN;
				else if (value[0] == ' ' && value[1] == 'w' && value[2] == 'f')
					ret->flags |= WIPED;
		}
		while (at < end && *at != '\n')
			at++;
		at++;
	}
	return at;
}

/* Where the heap of brk(2) begins: the 47th field of /proc/self/stat. 0 if that can't be read. */
UNCHECKED uint64_t first_brk(void)
{
	char text[2048];
	const long size = read_all("/proc/self/stat", text, sizeof(text) - 1);
	const char *at = text;

	if (size <= 0)
		return 0;
	text[size] = 0;
	for (long i = size; i > 0; i--)
		if (text[i] == ')') {
			at = text + i + 2;
			break;
		}
	for (int field = 3; field < 47; field++) {
		while (*at && *at != ' ')
			at++;
		if (*at)
			at++;
	}
	return number(&at, 10);
}
