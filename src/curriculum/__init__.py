"""Curricula: tasks that the policy always or never solves are taken seldom."""
