/* Forty sandboxes that give away as many files as they can: prints the rows of all their tables, and those left at the end. */

#include "supervisor_owners.c"

#define SANDBOXES 40

int main(void)
{
	struct lw_supervisor *supervisor = calloc(1, sizeof(*supervisor));
	struct lw_purse *purses = calloc(SANDBOXES, sizeof(*purses));
	const struct question q = { .gives = true, .uid = 7, .gid = KEEP };
	uint64_t rows = 0;

	if (!supervisor || !purses)
		return 1;
	for (int at = 0; at < SANDBOXES; at++) {
		for (uint64_t inode = 1; inode < MOST; inode++)
			give(supervisor, &purses[at], &(struct file){ .device = 3, .inode = inode }, &q);
		rows += purses[at].owners ? purses[at].owners->room : 0;
	}
	printf("%u %llu ", purses[0].owners->room, (unsigned long long)rows);
	for (int at = 0; at < SANDBOXES; at++)
		lw_forget_owners(supervisor, &purses[at]);
	printf("%u\n", supervisor->owners);
	free(purses);
	free(supervisor);
	return 0;
}
