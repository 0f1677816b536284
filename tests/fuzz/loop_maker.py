"""Random loops that are right, by construction.

workers ─ feedbacks ─ prompts ─ rollout ─ (filter) ─ form ─ scores ─ rewards ─ advantages ─ log-probs ─ records ─ row chain ─ train ─ close

Each stage draws what it does, and calls only what it has the fields for, so every result is read by something. The numbers divide,
or are padded until they do.
"""

from __future__ import annotations

from math import lcm

from loop_model import CORRECTIONS, OPS, RECORDS, SAMPLE, Arg, Call, Column, Expr, Program, Raw, Rows, Weights, Whole
from loop_writer import Choose, Writer

TOKENIZER = Arg("tokenizer", Raw('"tiny"'), keyword=True)


class Model:
    """A model of the loop that is trained: its worker, feedback, losses and what they read."""

    def __init__(self, worker: str, feedback: str, dp: int, losses: list[str], bases: list[str]) -> None:
        self.worker, self.feedback, self.dp, self.losses, self.bases = worker, feedback, dp, losses, bases


class Maker(Writer):
    """Draws one loop."""

    # --- the loop ------------------------------------------------------------------------------------------------------
    def make(self) -> Program:
        self._workers()
        sample, rows = self._sample()
        ready = self._batch(sample, rows)
        adv = self._advantages(ready)
        self._train(ready, adv)
        self._evaluate()
        if not any(line.call.fn == "judge.grade" for line in self.program.body):
            self.program.body = [line for line in self.program.body if line.what != "worker:judge"]
        self._helper()
        return self.program

    def _workers(self) -> None:
        c = self.choose
        self.lag = c.one([0, 0, 1, 2])
        self.tree, self.has_critic, self.has_student = self.maybe(4), self.maybe(3), self.maybe(4)
        self.in_loss = c.one(["none", "none", "kl", "off"])  # the KL penalty: not there, on, or there with beta 0
        self.in_reward = self.maybe(4)
        self.has_judge, self.extra_engine = self.maybe(4), self.maybe(4)
        self.temperature = c.one(["1.0", "1.0", "0.7"])
        self.group_size, self.prompts, self.mini_batches = c.one([2, 4, 5, 8]), c.one([4, 6, 16, 63]), c.one([1, 1, 2, 3])
        self.dp = {"actor": c.one([1, 2, 3, 4]), "critic": c.one([1, 2]), "student": c.one([1, 2])}
        wanted = ["actor", "engine"]
        wanted += ["critic"] if self.has_critic else []
        wanted += ["student", "teacher"] if self.has_student else []
        wanted += ["reference"] if self.in_loss == "kl" or self.in_reward else []
        wanted += ["judge"] if self.has_judge else []
        wanted += ["evaluator"] if self.extra_engine else []
        self.names |= set(wanted)
        for name in c.order(wanted):
            self._worker(name)
        for name, worker in (("policy", "actor"), ("baseline", "critic"), ("pupil", "student")):
            if worker in wanted:
                self._feedback(name, worker, self.lag if name == "policy" else 0)

    def _worker(self, name: str) -> None:
        cls = {"engine": "Embedded", "evaluator": "Embedded", "critic": "TorchCritic", "judge": "Judge"}
        args = [Arg("name", Raw(f'"{name}"'))]
        if name in self.dp:
            args.append(Arg("dp", Raw(str(self.dp[name])), keyword=True))
        if self.temperature != "1.0" and name not in ("judge", "critic", "evaluator"):
            args.append(Arg("temperature", Raw(self.temperature), keyword=True))
        self.add(f"worker:{name}", Call(cls.get(name, "Torch"), args), name)

    def _feedback(self, name: str, worker: str, lag: int) -> None:
        args = [Arg("name", Raw(f'"{name}"')), Arg("init", Weights(f"{worker}.load()"), keyword=True)]
        if lag or self.maybe():
            args.append(Arg("max_lag", Raw(str(lag)), keyword=True))
        self.names.add(name)
        self.add(f"feedback:{name}", Call("Feedback", args), name)

    # --- from prompts to one batch -------------------------------------------------------------------------------------
    def _sample(self) -> tuple[Whole, Rows]:
        prompts = self._prompts()
        dispatched: Expr = Call("dispatch", [Arg("prompts", prompts), Arg("n", Raw(str(self.group_size)), keyword=True)])
        if self.maybe():
            name = self.name("prompt", "asked")
            assert isinstance(dispatched, Call)
            self.add("dispatch", dispatched, name)
            dispatched = Raw(name)
        method, extra = self._rollout()
        rows, variable = Rows("stream"), self.name("sample", "played")
        fields = {field: Column(f"{variable}.{field}", kind, rows) for field, kind in SAMPLE.items()}
        args = [Arg("policy", Weights("policy.served")), Arg("prompts", dispatched, keyword=self.maybe(3)), *extra]
        self.add("rollout", Call(f"engine.{method}", args), variable, fields.values())
        return Whole(variable, fields, rows), rows

    def _prompts(self) -> Expr:
        read: Expr = Call("dataset", [Arg("path", Raw('"digits.parquet"')), TOKENIZER])
        if not self.maybe(4):
            return read
        rows, source, kept = Rows("stream"), self.name("prompts", "questions"), self.name("hard")
        assert isinstance(read, Call)
        template = Column(f"{source}.template", "template", rows)
        self.add("dataset", read, source, [template, Column(f"{source}.answer", "prompt_answer", rows)])
        self.add("drop_easy", Call("drop_easy", [Arg("rows", Raw(source)), Arg("template", template)], {"template": "template"}), kept)
        return Raw(kept)

    def _rollout(self) -> tuple[str, list[Arg]]:
        game = Arg("environment", Raw("HigherLower(turns=3)"), keyword=True)
        if self.tree:
            return "rollout_tree", [game, Arg("forks", Raw("(1, 2)"), keyword=True)]
        if self.maybe(4):
            return "rollout_turns", [game]
        return "rollout", []

    def _batch(self, sample: Whole, rows: Rows) -> Whole:
        carried = {}
        kept = sample
        if self.maybe(3):
            score = self._verifier(sample)
            if self.maybe():
                kept = self.put_together(
                    "Judged", ["Sample", "ScoreRows"], sample.fields | {"token_level_scores": score["token_level_scores"]}
                )
                carried = {"token_level_scores": "scores"}
            if not carried or self.maybe():
                source = kept.fields.get("token_level_scores", score["token_level_scores"])
                kept = self.row_operator("keep_mixed", kept, "filter", {"token_level_scores": source, "uid": kept.fields["uid"]})
        elif self.maybe(4):
            graded = self.apply("fluency", {"response_text": sample.fields["response_text"]}, ["grade"])[""]
            kept = self.row_operator("keep_good", kept, "filter", {"quality": graded, "uid": sample.fields["uid"]})
        size = None if self.tree else self.prompts * self.group_size
        return self.row_operator("form_batch", kept, "form", size=size, config=[Arg("prompts", Raw(str(self.prompts)), keyword=True)])

    # --- rewards and advantages -----------------------------------------------------------------------------------------
    def _verifier(self, rows: Whole) -> dict[str, Column]:
        name = self.choose.one(["integer_match", "exact_match", "number_match"])
        given = {field: rows.fields[field] for field in ("response_text", "answer", "response_mask")}
        config = [Arg("timeout_s", Raw("2.0"), keyword=True)] if self.maybe(4) else []
        return self.apply(name, given, ["score", "verdict"], config=config)

    def _rewards(self, ready: Whole) -> Column:
        f = ready.fields
        if "token_level_scores" in f:
            scores = f["token_level_scores"]
        else:
            verdict = self._verifier(ready)
            scores = verdict["token_level_scores"]
            if self.maybe(3):
                self.apply("report", {"scores": verdict["is_correct"], "uid": f["uid"]}, [])
        if self.maybe(4):
            dense = self.apply("dense_scores", {"input_ids": f["input_ids"], "attention_mask": f["attention_mask"]}, ["dense"])[""]
            more = self.apply("shift", {"scores": dense, "response_mask": f["response_mask"]}, ["shifted"])[""]
            scores = self.apply("merge_scores", {"one": scores, "two": more}, ["merged"])[""]
        if self.maybe(3):
            numbers = [Arg("limit", Raw("64"), keyword=True), Arg("per_token", Raw("0.01"), keyword=True)]
            given = {"token_level_scores": scores, "response_mask": f["response_mask"]}
            rewards = self.apply("length_penalty", given, ["rewards"], config=numbers)[""]
        else:
            rewards = self.apply("shape_rewards", {"token_level_scores": scores}, ["rewards"])[""]
        for _ in range(self.choose.one([0, 0, 1, 2])):
            graded = self._quality(ready)
            given = {"token_level_rewards": rewards, "quality": graded, "response_mask": f["response_mask"]}
            rewards = self.apply("add_quality", given, ["mixed", "total"])[""]
        return rewards

    def _quality(self, ready: Whole) -> Column:
        f, how = ready.fields, self.choose.one(["fluency", "length_of", *(["grade"] if self.has_judge else [])])
        if how == "grade":
            given = {"response_text": f["response_text"], "answer": f["answer"]}
            graded = self.apply("grade", given, ["graded"], worker="judge", weights="judge.load()")[""]
        else:
            param = next(iter(OPS[how].takes))
            graded = self.apply(how, {param: f[param]}, ["graded"])[""]
        if self.maybe(3):
            graded = self.apply("rank_quality", {"quality": graded, "uid": f["uid"]}, ["ranked"])[""]
        return graded

    def log_probs(self, ready: Whole, worker: str, weights: str, target: str, kind: str) -> Column:
        given = {name: ready.fields[name] for name in OPS["log_probs"].takes}
        made = self.apply("log_probs", given, [target], worker=worker, weights=weights, what=target)[""]
        made.kind = kind
        return made

    def _advantages(self, ready: Whole) -> dict[str, Column]:
        """All columns that a training record can be made of, by field."""
        have = dict(ready.fields)
        rewards = self._rewards(ready)
        anchored = self.maybe(4)
        if anchored:
            have["old_log_probs"] = self.apply("anchor_on_rollout", {"rollout_log_probs": have["rollout_log_probs"]}, ["old"])[""]
        else:
            have["old_log_probs"] = self.log_probs(ready, "actor", "policy.current", "old", "old_log_probs")
        if self.in_loss == "kl" or self.in_reward:
            have["ref_log_probs"] = self.log_probs(ready, "reference", "reference.load()", "ref", "ref_log_probs")
        if self.has_student:
            have["teacher_log_probs"] = self.log_probs(ready, "teacher", "teacher.load()", "taught", "ref_log_probs")
        if self.in_reward:
            given = {name: have[name] for name in ("old_log_probs", "ref_log_probs", "response_mask")} | {"token_level_rewards": rewards}
            rewards = self.apply("kl_in_reward", given, ["penalised"], config=[Arg("beta", Raw("0.05"), keyword=True)])[""]
        have |= self._estimate(ready, rewards, have)
        return have | {"advantages": self._weighed(have, anchored)}

    def _estimate(self, ready: Whole, rewards: Column, have: dict[str, Column]) -> dict[str, Column]:
        given = {"token_level_rewards": rewards, "response_mask": ready.fields["response_mask"]}
        if self.has_critic:
            inputs = {name: ready.fields[name] for name in OPS["values"].takes}
            values = self.apply("values", inputs, ["values"], worker="critic", weights="baseline.current")[""]
            return {"values": values} | self.apply("gae", given | {"values": values}, ["adv"])
        name = self.choose.one(["grpo", "rloo", "rank_advantage"])
        given |= {"uid": ready.fields["uid"]}
        if "traj_uid" in OPS[name].optional and (self.tree or self.maybe()):
            given |= {"traj_uid": ready.fields["traj_uid"]}
        return self.apply(name, given, ["adv", "estimated"])

    def _weighed(self, have: dict[str, Column], anchored: bool) -> Column:
        adv = have["advantages"]
        if self.maybe(4):
            adv = self.apply("whiten", {"advantages": adv, "response_mask": have["response_mask"]}, ["white"])[""]
        if self.maybe(4):
            given = {"log_probs": have["old_log_probs"], "response_mask": have["response_mask"]}
            weights = self.apply("token_weights", given, ["focus"])[""]
            adv = self.apply("weigh", {"advantages": adv, "weights": weights}, ["focused"])[""]
        if (self.lag and not anchored) or (not anchored and self.maybe(4)):
            given = {name: have[name] for name in ("old_log_probs", "rollout_log_probs", "response_mask")} | {"advantages": adv}
            adv = self.apply(self.choose.one(CORRECTIONS), given, ["weighed"])[""]
        return adv

    # --- training ---------------------------------------------------------------------------------------------------------
    def _models(self) -> list[Model]:
        losses, bases = ["ppo_clip(0.2, 0.28)"], ["ModelRows", "PpoRows"]
        if self.in_loss != "none":
            losses, bases = [*losses, f"kl_penalty({0.1 if self.in_loss == 'kl' else 0.0})"], [*bases, "KlRows"]
        if self.maybe(3):
            losses.append("entropy_bonus(0.01)")
        self.late = self.maybe(4)
        models = [Model("actor", "policy", self.dp["actor"], self.choose.order(losses), bases)]
        if self.has_critic:
            models.append(Model("critic", "baseline", self.dp["critic"], ["value_clip()"], ["ModelRows", "ValueRows"]))
        if self.has_student:
            models.append(Model("student", "pupil", self.dp["student"], ["distill(1.0)"], ["ModelRows", "TeacherRows"]))
        return self.choose.order(models)

    def _train(self, ready: Whole, have: dict[str, Column]) -> None:
        models = self._models()
        holes = {"ref_log_probs": "kl is 0"} if self.in_loss == "off" and not self.in_reward else {}
        together = self.maybe()
        batches = [models] if together else [[model] for model in models]
        for number, group in enumerate(batches):
            bases = list(dict.fromkeys(base for model in group for base in model.bases))
            extras = [base for base in ("QualityRows",) if "quality" in have]
            bases += ["UidRows"] if self.mini_batches > 1 or self.maybe(3) else extras
            mine = {field: why for field, why in holes.items() if "KlRows" in bases}
            record = self.put_together(f"TrainRows{number or ''}", bases, have, mine)
            written = self.program.body[-1]
            active = {base for model in group for base in model.bases} - ({"KlRows"} if self.in_loss == "off" else set())
            written.reads = {field for base in active for field in RECORDS[base]}
            self._chain(record, group, bases, mine)
            written.readers = [self.program.line(f"train:{model.feedback}") for model in group]

    def _chain(self, record: Whole, models: list[Model], bases: list[str], holes: dict[str, str]) -> None:
        """pad → rebalance, then for each model shard → micro-batches → train."""
        ways = lcm(*(model.dp * self.mini_batches for model in models))
        size = record.rows.size
        if size is None or size % ways or self.maybe():
            factor = self.choose.one([1, 1, 2])
            total = None if size is None else -(-size // (ways * factor)) * ways * factor
            number = f"{factor} * {ways}" if factor > 1 else str(ways)
            record = self.row_operator(
                "pad",
                record,
                "pad",
                size=total,
                multiple=ways * factor,
                config=[Arg("multiple", Raw(number), keyword=True)],
                target=["padded"],
            )
        if self.maybe():
            config = [Arg("pieces", Raw(str(self.choose.one([1, 2, 4]) * ways)), keyword=True)]
            if self.mini_batches > 1:
                config.append(Arg("mini_batches", Raw(str(self.mini_batches)), keyword=True))
            keep = {"size": record.rows.size, "multiple": record.rows.multiple}
            record = self.row_operator("rebalance", record, "permute", config=config, target=["balanced"], **keep)
        elif self.mini_batches == 1 and self.maybe(4):
            keep = {"size": record.rows.size, "multiple": record.rows.multiple}
            record = self.row_operator("shuffle", record, "permute", target=["shuffled"], **keep)
        for model in models:
            self._model(record, model, bases, holes)

    def _model(self, record: Whole, model: Model, bases: list[str], holes: dict[str, str]) -> None:
        config = [Arg("on", Raw(model.worker), keyword=True)]
        if self.mini_batches > 1:
            config.append(Arg("mini_batches", Raw(str(self.mini_batches)), keyword=True))
        part = self.row_operator("shard", record, "shard", config=config, target=["part", "mine"])
        losses = list(model.losses)
        if model.worker == "actor" and self.late and "PpoRows" in bases:
            part, losses = self._late(part, bases, holes), [*losses, "weighted_entropy(0.01)"]
        budget = Arg("max_tokens", Raw("4096"), keyword=True)
        micro = self.row_operator("micro_pack", part, "pack", config=[budget], target=["micro", "packed"])
        args = [Arg("weights", Weights(f"{model.feedback}.move")), Arg("objective", Raw(f"{micro.text}.loss({', '.join(losses)})"))]
        if self.maybe(4):
            args.append(Arg("updates", Raw("2"), keyword=True))
        trained = self.name("trained", "updated")
        self.add(f"train:{model.feedback}", Call(f"{model.worker}.train", args), trained)
        self._close(model, trained)

    def _late(self, part: Whole, bases: list[str], holes: dict[str, str]) -> Whole:
        """A hop of each rank on its own rows, between shard and micro-batches."""
        given = {"log_probs": part.fields["old_log_probs"], "response_mask": part.fields["response_mask"]}
        weights = self.apply("token_weights", given, ["focus"], what="late")[""]
        return self.put_together("LateRows", [*bases, "WeightRows"], part.fields | {"token_weights": weights}, holes)

    def _close(self, model: Model, trained: str) -> None:
        new: Expr = Raw(trained)
        if model.feedback == "policy":
            for engine in ["engine", *(["evaluator"] if self.extra_engine else [])]:
                new = Call("sync", [Arg("weights", new), Arg("engine", Raw(engine))])
            if self.maybe(3):
                synced = self.name("synced")
                assert isinstance(new, Call)
                self.add("sync", new, synced)
                new = Raw(synced)
        self.add(f"close:{model.feedback}", Call(f"{model.feedback}.close", [Arg("new", new)]))

    def _evaluate(self) -> None:
        engine = "evaluator" if self.extra_engine else "engine"
        if not (self.extra_engine or self.maybe()):
            return
        held_out = Call("dataset", [Arg("path", Raw('"digits.parquet"')), Arg("split", Raw('"test"'), keyword=True), TOKENIZER])
        config = [Arg("reward", Raw("integer_match"), keyword=True), Arg("every", Raw("5"), keyword=True)]
        args = [Arg("policy", Weights("policy.served")), Arg("prompts", held_out), *config]
        line = self.add("evaluate", Call(f"{engine}.evaluate", args))
        if self.maybe():  # anywhere after the feedbacks
            body = self.program.body
            body.remove(line)
            first = max(i for i, other in enumerate(body) if other.what.startswith(("feedback", "worker"))) + 1
            body.insert(self.choose.one(range(first, len(body) + 1)), line)

    def _helper(self) -> None:
        """Move some lines of the middle into a function of their own."""
        if not self.maybe(3):
            return
        body = self.program.body
        first = next(i for i, line in enumerate(body) if line.what == "rollout") + 1
        start = self.choose.one(range(first, len(body)))
        self.program.helper = (body[start], body[min(len(body) - 1, start + self.choose.one([0, 1, 3, 6]))])


def make_loop(choose: Choose) -> Program:
    """A random loop that is right."""
    return Maker(choose).make()
