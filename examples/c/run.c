/* A job from C: its output and its exit code become ours.
 *
 *	cc run.c $(leeward config --cflags --libs) -o run && ./run 'print(6 * 7)' [SECONDS] */
#include <leeward.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	const char *code = argc > 1 ? argv[1] : "print('hello from a sandbox')";
	leeward_options options = {.size = sizeof options,
				   .timeout = argc > 2 ? atof(argv[2]) : 0,
				   .output = 64 << 20};
	leeward_handle *handle = leeward_connect(NULL);
	leeward_result *result = NULL;
	int status = 1;

	if (handle)
		result = leeward_execute(handle, code, strlen(code), &options);
	if (result) {
		fwrite(result->stdout_data, 1, result->stdout_length, stdout);
		fwrite(result->stderr_data, 1, result->stderr_length, stderr);
		if (result->outcome == LEEWARD_TIMED_OUT)
			fprintf(stderr, "the job ran into its time limit\n");
		status = result->exit_code;
	} else {
		fprintf(stderr, "%s\n", leeward_last_error());
	}
	leeward_free_result(result);
	leeward_disconnect(handle);
	return status;
}
