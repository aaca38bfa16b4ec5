/*
 * cxxopts.hpp - as much of the library of that name as libfuse's passthrough_hp needs.
 *
 * passthrough_hp counts on an old version's habit of taking what it has parsed out of argv,
 * which the versions that distributions have gave up.
 */
#pragma once
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>
// passthrough_hp counts on these, too.
#include <cassert>
#include <functional>
#include <unordered_map>

namespace cxxopts {

struct option_not_exists_exception : std::runtime_error {
	using std::runtime_error::runtime_error;
};

/* The text of an option; copies share it. */
struct Value {
	std::shared_ptr<std::string> text = std::make_shared<std::string>("0");

	Value *operator->() { return this; }
	Value &default_value(const std::string &s) { return *text = s, *this; }
	Value &implicit_value(const std::string &) { return *this; }
	template <typename T> T as() const
	{
		T out{};

		std::istringstream(*text) >> out;
		return out;
	}
};

template <typename T> Value value() { return {}; }
template <typename T> Value value(std::vector<T> &) { return {}; }

struct ParseResult {
	std::map<std::string, Value> options;
	std::map<std::string, int> counts;

	size_t count(const std::string &name) const { return counts.count(name); }
	const Value &operator[](const std::string &name) const { return options.at(name); }
};

struct Options {
	std::map<std::string, Value> options;

	explicit Options(const char *) {}
	Options &add_options() { return *this; }
	Options &operator()(const char *name, const char *, Value value = {})
	{
		options[name] = value;
		return *this;
	}
	std::string help() const { return "\n\n"; }

	/* --NAME and --NAME=VALUE. What is no option stays in argv. */
	ParseResult parse(int &argc, char **&argv)
	{
		ParseResult result{options, {}};
		int left = 1;

		for (int i = 1; i < argc; i++) {
			std::string name = argv[i];
			size_t eq = name.find('=');

			if (name.compare(0, 2, "--")) {
				argv[left++] = argv[i];
				continue;
			}
			std::string given = eq == std::string::npos ? "1" : name.substr(eq + 1);
			name = name.substr(2, eq == std::string::npos ? eq : eq - 2);
			if (!options.count(name))
				throw option_not_exists_exception("no such option: " + name);
			*options[name].text = given;
			result.counts[name]++;
		}
		argc = left;
		return result;
	}
};

} // namespace cxxopts
