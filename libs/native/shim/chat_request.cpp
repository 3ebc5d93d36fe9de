// Reading and checking what a chat is asked for.

#include "chat_request.h"

#include "bounds.h"

#include "json-schema-to-grammar.h"

#include <algorithm>

namespace dgr {

namespace {

constexpr size_t max_depth = 128; // of JSON

common_json read_json(const char * field, const std::string & text) {
    if (nesting(text, true) > max_depth) {
        throw failure(DGR_MALFORMED, std::string(field) + format(": it nests deeper than %zu", max_depth));
    }
    return stage(DGR_MALFORMED, std::string(field) + ": ", [&] { return common_json::parse(text); });
}

[[noreturn]] void malformed(const std::string & what) { throw failure(DGR_MALFORMED, what); }

std::vector<common_chat_msg> read_messages(const std::string & text) {
    const auto messages = read_json("messages_json", text);
    if (!messages.is_array() || messages.empty()) {
        malformed("messages_json: an array of at least one message is wanted");
    }
    for (const auto & message : messages) {
        if (!message.is_object() || !message.contains("content") || !message.at("content").is_array()) {
            continue;
        }
        for (const auto & part : message.at("content")) {
            if (!part.is_object() || part.value("type", "") != "text") {
                malformed("messages_json: a part of a content is no text; only text is taken");
            }
        }
    }
    return stage(DGR_MALFORMED, "messages_json: ", [&] { return common_chat_msgs_parse_oaicompat(messages); });
}

void read_tools(const chat_request & r, common_chat_templates_inputs & inputs) {
    if (!r.tools.empty()) {
        const auto tools = read_json("tools_json", r.tools);
        inputs.tools     = stage(DGR_MALFORMED, "tools_json: ", [&] { return common_chat_tools_parse_oaicompat(tools); });
    }
    const std::string & choice = r.tool_choice;
    if (choice.empty() || choice == "auto" || choice == "none" || choice == "required") {
        inputs.tool_choice = choice.empty() ? COMMON_CHAT_TOOL_CHOICE_AUTO : common_chat_tool_choice_parse_oaicompat(choice);
    } else {
        // The chat code knows no choice by name: a model that is shown one tool, and must use one, uses that.
        inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        inputs.tools.erase(std::remove_if(inputs.tools.begin(), inputs.tools.end(), [&](const common_chat_tool & t) { return t.name != choice; }),
                           inputs.tools.end());
    }
    if (inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED && inputs.tools.empty()) {
        malformed("tool_choice: it asks for a tool that tools_json does not have");
    }
}

void read_schema(const chat_request & r, common_chat_templates_inputs & inputs) {
    if (r.schema.empty()) {
        return;
    }
    auto schema = read_json("json_schema", r.schema);
    if (schema.is_object() && schema.empty()) {
        schema["type"] = "object"; // as llama-server reads it
    }
    const strict_schema strict;
    stage(DGR_INVALID_GRAMMAR, "json_schema: ", [&] { return json_schema_to_grammar(schema, true); });
    inputs.json_schema = schema.dump();
}

void read_arguments(const chat_request & r, common_chat_templates_inputs & inputs) {
    if (r.arguments.empty()) {
        return;
    }
    const auto arguments = read_json("template_arguments_json", r.arguments);
    if (!arguments.is_object()) {
        malformed("template_arguments_json: an object is wanted");
    }
    for (const auto & argument : arguments.items()) {
        for (const char * own : { "messages", "tools", "bos_token", "eos_token", "add_generation_prompt" }) {
            if (argument.key() == own) {
                malformed("template_arguments_json." + argument.key() + ": the worker gives it; use another field");
            }
        }
        inputs.chat_template_kwargs[argument.key()] = argument.value().dump();
    }
    if (arguments.contains("enable_thinking")) {
        if (!arguments.at("enable_thinking").is_boolean()) {
            malformed("template_arguments_json.enable_thinking: true or false is wanted");
        }
        inputs.enable_thinking = arguments.at("enable_thinking").get<bool>();
    }
}

} // namespace

common_chat_templates_inputs inputs_of(const common_chat_templates & templates, const chat_request & r) {
    common_chat_templates_inputs inputs;
    inputs.messages = read_messages(r.messages);
    read_tools(r, inputs);
    read_schema(r, inputs);
    read_arguments(r, inputs);
    inputs.add_generation_prompt = r.generate;
    inputs.reasoning_format      = reasoning_format;
    inputs.parallel_tool_calls   = common_chat_templates_get_caps(&templates)["supports_parallel_tool_calls"];
    return inputs;
}

chat_request read_request(const std::string & text) {
    return stage(DGR_MALFORMED, "no request, and no parser that RenderChat gave: ", [&] {
        if (nesting(text, true) > max_depth) {
            throw std::invalid_argument("it nests too deep");
        }
        const auto   j = common_json::parse(text);
        chat_request r;
        r.messages    = j.at("messages").get<std::string>();
        r.tools       = j.value("tools", "");
        r.tool_choice = j.value("choice", "");
        r.schema      = j.value("schema", "");
        r.arguments   = j.value("arguments", "");
        r.generate    = j.at("generate").get<bool>();
        r.call_id     = j.value("call", "");
        return r;
    });
}

std::string write_request(const chat_request & r) {
    auto j         = common_json::object();
    j["messages"]  = r.messages;
    j["tools"]     = r.tools;
    j["choice"]    = r.tool_choice;
    j["schema"]    = r.schema;
    j["arguments"] = r.arguments;
    j["generate"]  = r.generate;
    j["call"]      = r.call_id;
    return j.dump();
}

std::string call_id(const std::string & text) {
    uint64_t hash = 0xcbf29ce484222325; // FNV-1a
    for (const char c : text) {
        hash = (hash ^ uint8_t(c)) * 0x100000001b3;
    }
    std::string id;
    while (id.size() < 9) {
        id += "0123456789abcdefghijklmnopqrstuvwxyz"[hash % 36];
        hash /= 36;
    }
    return id;
}

size_t nesting(const std::string & text, bool json) {
    size_t depth = 0, deepest = 0;
    bool   string = false;
    for (size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        if (string) {
            i += c == '\\';
            string = c != '"';
        } else if (json && c == '"') {
            string = true;
        } else if (c == '(' || c == '[' || c == '{') {
            deepest = std::max(deepest, ++depth);
        } else if ((c == ')' || c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return deepest;
}

std::string shorten(const std::string & error) {
    std::string       text  = error;
    const std::string mark  = "Error: ";
    const size_t      last  = error.rfind(mark);
    const size_t      place = error.find("at line ");
    if (last != std::string::npos && place != std::string::npos && place < last) {
        const size_t end = error.find(" in source", place);
        text = error.substr(last + mark.size());
        if (end != std::string::npos && end < last) {
            text += " (" + error.substr(place, end - place) + " of the template)";
        }
    }
    std::replace(text.begin(), text.end(), '\n', ' ');
    const size_t begin = text.find_first_not_of(' ');
    return begin == std::string::npos ? "" : text.substr(begin, 600);
}

} // namespace dgr
