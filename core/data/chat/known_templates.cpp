#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>

#include "core/data/chat/chat_template.h"

namespace ottava::data {
namespace {

struct Known {
  uint64_t hash;  ///< XXH64 of the text without white space at its end
  ChatTemplate style;
};
// Those of Llama-3-8B-Instruct, Llama-3.1, Llama-3.2, Qwen2.5, Qwen3 and Qwen3-Instruct-2507, as in PyPI's
// trl (scripts/reference/make_chat_golden.py).
constexpr std::array<Known, 6> kKnown{{{0xdcdc8f0c69cd885e, ChatTemplate::llama3},
                                       {0xc0e2a829a7f6e18a, ChatTemplate::llama3_1},
                                       {0xe980fb39e0834855, ChatTemplate::llama3_2},
                                       {0x14f39dfcc63bcdcb, ChatTemplate::qwen2_5},
                                       {0xa2f2632e64077a8e, ChatTemplate::qwen3},
                                       {0x438e1930d4ab6761, ChatTemplate::chatml}}};

constexpr std::string_view kLlama3 =
    R"({%- for message in messages %}
    {%- if loop.first %}
        {{- bos_token }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";

constexpr std::string_view kLlama32 =
    R"({#- As of llama3.1, with a date that stays. #}
{%- if not date_string is defined %}
    {%- set date_string = '26 Jul 2024' %}
{%- endif %}
{%- set system = '' %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' + date_string + '\n\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)";

// The same without the comment, by which the two can be told apart.
constexpr std::string_view kLlama31 = kLlama32.substr(kLlama32.find('\n') + 1);

constexpr std::string_view kQwen25 =
    R"({%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

// The same without the system's words.
constexpr std::string_view kChatml = kQwen25.substr(kQwen25.find("{%- for"));

constexpr std::string_view kQwen3 =
    R"({%- set ns = namespace(query=messages | length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if not ns.found and message['role'] == 'user' and not (message['content'].startswith('<tool_response>') and message['content'].endswith('</tool_response>')) %}
        {%- set ns.query = messages | length - loop.index %}
        {%- set ns.found = true %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' }}
    {%- set content = message['content'] %}
    {%- if message['role'] == 'assistant' %}
        {%- set thoughts = '' %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].strip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.query and (loop.last or thoughts) %}
            {{- '<think>\n' + thoughts + '\n</think>\n\n' }}
            {%- set content = content.lstrip('\n') %}
        {%- endif %}
    {%- endif %}
    {{- content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
)";

constexpr std::array<std::string_view, 6> kOwn{kLlama3, kLlama31, kLlama32, kChatml, kQwen25, kQwen3};

std::string_view without_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

}  // namespace

std::string_view jinja_of(ChatTemplate style) { return kOwn[static_cast<size_t>(style)]; }

std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja) {
  const std::string_view text = without_end(jinja);
  for (size_t i = 0; i < kOwn.size(); ++i)
    if (without_end(kOwn[i]) == text) return static_cast<ChatTemplate>(i);
  const uint64_t hash = XXH64(text.data(), text.size(), 0);
  for (const Known& known : kKnown)
    if (known.hash == hash) return known.style;
  return std::nullopt;
}

}  // namespace ottava::data
