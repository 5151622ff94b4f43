// A job from C++: its output and its exit code become ours.
//
//	c++ -std=c++17 run.cpp $(leeward config --cflags --libs) -o run && ./run 'print(6 * 7)' [SECONDS]
#include <leeward.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

using Handle = std::unique_ptr<leeward_handle, decltype(&leeward_disconnect)>;
using Result = std::unique_ptr<leeward_result, decltype(&leeward_free_result)>;

static Result execute(const Handle &handle, std::string_view code, double seconds)
{
	leeward_options options{};
	options.size = sizeof options;
	options.timeout = seconds;
	options.output = 64 << 20;
	Result result{leeward_execute(handle.get(), code.data(), code.size(), &options), leeward_free_result};
	if (!result)
		throw std::runtime_error{leeward_last_error()};
	return result;
}

int main(int argc, char **argv)
try {
	Handle handle{leeward_connect(nullptr), leeward_disconnect};
	if (!handle)
		throw std::runtime_error{leeward_last_error()};
	const Result result = execute(handle, argc > 1 ? argv[1] : "print('hello from a sandbox')",
				      argc > 2 ? std::atof(argv[2]) : 0);
	const auto text = [](const unsigned char *data, std::size_t length) {
		return std::string_view{reinterpret_cast<const char *>(data), length};
	};
	std::cout << text(result->stdout_data, result->stdout_length) << std::flush;
	std::cerr << text(result->stderr_data, result->stderr_length);
	if (result->outcome == LEEWARD_TIMED_OUT)
		std::cerr << "the job ran into its time limit\n";
	return result->exit_code;
} catch (const std::exception &error) {
	std::cerr << error.what() << '\n';
	return 1;
}
