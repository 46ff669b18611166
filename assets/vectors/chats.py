"""Makes chats.json: chat templates in the forms of released models, chats, and what transformers makes of them.

Run by hand, since transformers is no tool of CI: `python3 assets/vectors/chats.py > assets/vectors/chats.json`, with transformers
5.24.0 and tokenizers. The tokens are bytes and the special tokens, in the order below.
"""

import json
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "[INST]", "[/INST]", "<pad>"]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LLAMA = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{%- if strftime_now is defined %}{%- set date = "26 Jul 2024" %}{%- else %}{%- set date = "26 Jul 2024" %}{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{{- "Today Date: " + date + "\\n\\n" }}
{{- system_message }}
{{- "<|eot|>" }}
{%- for message in messages %}
    {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" or (message["role"] == "assistant" and not (message.tool_calls is defined)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] + eos_token }}
    {%- endif %}
{%- endfor %}
"""

# Earlier answers lose what the model thought, by methods of Python's texts, as Qwen's templates have it.
QWEN = """\
{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.found and message.role == "user" and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.found = true %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thought)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

GENERATION = """\
{%- for message in messages %}
{% if message['role'] == 'assistant' %}
    {{- '<|im_start|>assistant\\n' }}
    {%- generation %}
    {{- message['content'] | trim + '<|im_end|>' }}
    {%- endgeneration %}
    {{- '\\n' }}
{% else %}
    {{- '<|im_start|>%s\\n' | format(message['role']) + message['content'] + '<|im_end|>\\n' }}
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

# Whitespace control, macros, loop controls, JSON, and how values are written.
SUNDRY = """\
{# a comment #}
{% macro turn(role, text='') -%}
  [{{ role | upper }}] {{ text }}
{%- endmacro %}
{% for message in messages %}
    {% if loop.index > 3 %}{% break %}{% endif %}
  {{ turn(message.role, message.content | tojson) }} {{ loop.index0 }}/{{ loop.length }} {{ loop.last }}
{% endfor %}
{{ tools }} {{ [1, 'a', none, true] }} {{ {'b': 1.5, 'a': "it's"} }} {{ {'b': [1, {'c': '<&>'}]} | tojson }}
{{ {'b': [1, 2]} | tojson(indent=2) }} {{ unknown }}|{{ unknown is defined }} {{ messages | map(attribute='role') | join(', ') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages[-1]['content'][:3] }} {{ "a-b".replace('-', ' ').title() }}
{{- '\\n' + eos_token if add_generation_prompt else '' -}}
{%- set text %}  captured  {% endset %}{{ text | trim }}|{{ 'x' ~ 1 ~ none }}|{{ 7 // 2 }}{{ 7 / 2 }}{{ -7 % 3 }}
"""

U, A, S = ({"role": role} for role in ["user", "assistant", "system"])
say = lambda who, text: {**who, "content": text}
CHATS = [
    [say(U, "Two plus two?"), say(A, "Four.")],
    [say(S, " Be brief. "), say(U, "Hi"), say(A, "  Hello  "), say(U, "\n\u00e9\u4e16 'x' <b>\\u003c\n"), say(A, "B\u00e9. \U0001f600")],
    [say(U, "a"), say(A, "<think>\nso\n</think>\n\nb"), say(U, "c"), say(A, "<think>\nhm\n</think>\n\nd")],
    [say(U, "a"), say(U, "b")],
    [{**U, "content": "a", "name": None}],
]


def tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return made


def main():
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    cases = []
    for name, template in [("chatml", CHATML), ("llama", LLAMA), ("mistral", MISTRAL), ("qwen", QWEN),
                           ("generation", GENERATION), ("sundry", SUNDRY)]:
        for chat in CHATS:
            case = {"template": name, "messages": chat}
            render = lambda ask: fast.apply_chat_template(chat, chat_template=template, tokenize=False, add_generation_prompt=ask)
            try:
                case |= {"text": render(False), "prompt": render(True)}
                if name == "generation":
                    out = fast.apply_chat_template(chat, chat_template=template, tokenize=True, return_dict=True,
                                                   return_assistant_tokens_mask=True)
                    case |= {"ids": out["input_ids"], "mask": out["assistant_masks"]}
            except Exception as why:
                case["error"] = str(why)
            cases.append(case)
    templates = {"chatml": CHATML, "llama": LLAMA, "mistral": MISTRAL, "qwen": QWEN, "generation": GENERATION, "sundry": SUNDRY}
    json.dump({"special": SPECIAL, "templates": templates, "cases": cases}, sys.stdout, indent=1)
    print()


main()
