"""Variation operators: what makes a new kernel from a brief.

The parts are put together like this. `model` is anything with `complete(messages, schema=..., max_tokens=...)`; what a
prompt holds and a model may answer is in docs/guides/agents.md. All of them are thread-safe.

    from operators.knowledge.base import KnowledgeBase
    from operators.llm_crossover import LlmCrossover
    from operators.macro.bandit import BanditPolicy
    from operators.macro.llm_policy import LlmPolicy
    from operators.micro.coder import RewriteCoder
    from operators.micro.llm_coder import CombinedCoder, LlmCoder
    from operators.micro.session import SessionLimits
    from operators.mtmc import MtmcOperator
    from operators.prompts.parts import Budgets, Switches
    from operators.prompts.writer import Prompts

    prompts = Prompts(Budgets(source=16_000), Switches(), knowledge=KnowledgeBase())
    policy = LlmPolicy(model, prompts, fallback=BanditPolicy())
    coder = CombinedCoder(RewriteCoder(), LlmCoder(model, prompts, SessionLimits(edits=4, repairs=3)))
    operator = MtmcOperator(policy, coder, max_steps=2, name="mtmc-llm")
    crossover = LlmCrossover(model, prompts, SessionLimits())
"""
