"""Joins the packages: a configuration becomes a task, a judge, a population and operators; sessions of many kinds."""
